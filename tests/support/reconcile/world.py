"""A cluster and its agents in memory: pods that start, run and die, agents that obey docs/protocol.md, a set clock.

It implements the reconciler's ports for real (writes can be read), and lets a test inject what happens outside.
"""

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from torchyard.api.launch import is_agentless, own_env, requested_procs, worker_command
from torchyard.api.names import CODE_ARRIVED
from torchyard.api.profiles.effective import with_profile
from torchyard.api.profiles.resource import TrainingProfile
from torchyard.api.reasons import Reason
from torchyard.api.resource import ObjectMeta, TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_code import Code
from torchyard.api.status import Images, TrainingJobStatus
from torchyard.api.values import Time
from torchyard.reconcile.actions import CommandAgent, CreatePod, DeleteJob, DeletePod, EmitEvent, Plan, WriteStatus
from torchyard.reconcile.code import Program, code_at, program_of
from torchyard.reconcile.gang import configuration
from torchyard.reconcile.node_memory import NodeMemory
from torchyard.reconcile.observed import Agent, Failure, Pod, RankReport, Refusal, RoundExit, View
from torchyard.reconcile.plan import plan
from torchyard.reconcile.profile import ProfileVerdict, apply_profile
from torchyard.reconcile.scheduling import enforced_by
from torchyard.schedulers.none import choose
from torchyard.schedulers.protocol import Change, CreateObject, DeleteObject, GangObject, Request, Scheduler

START = 1_800_000_000.0
TEMPLATE = {
    "spec": {"containers": [{"name": "trainer", "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "8"}}}]}
}


def merged(document: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


class World:
    """One job's world. `pods` is the truth; `cache` what the controller is shown of foreign changes until `observe`."""

    def __init__(self, nodes: int = 2, **spec: Any) -> None:
        self.now = START
        self.job: TrainingJob | None = TrainingJob(
            metadata=ObjectMeta(name="job", uid="job-uid", creation_timestamp=Time.of(START)),
            spec=TrainingJobSpec(nodes=nodes, **spec),
        )
        self.pods: dict[str, Pod] = {}
        self.agents: dict[str, Agent] = {}
        self.registry: dict[str, Agent] = {}
        self.cache: dict[str, Pod] = {}
        self.commands: dict[str, CommandAgent] = {}
        self.events: list[EmitEvent] = []
        self.since = START
        self.node_memory = NodeMemory()
        self.delayed = False
        self.refusing = False
        self.room: int | None = None  # pods that the cluster has room for; None: any number
        self.refusal: Refusal | None = None
        self.files_stay = True
        self.content = "content-1"  # of config maps: what an agent that starts now reads
        self.images: Images | None = Images(trainer="trainer:1", agent="agent:1")
        self.created: list[CreatePod] = []
        self.scheduler: Scheduler | None = None
        self.objects: dict[str, GangObject] = {}
        self.objects_known = True
        self.sources: dict[str, tuple[GangObject, ...]] = {}
        self.profile: TrainingProfile | None = None  # that the job names, as it is in the cluster
        self.training: dict[str, int] = {}
        self.pushed: dict[str, tuple[str, ...]] = {}  # code that pods have received since their creation
        self.ran: dict[str, tuple[str, list[str]]] = {}  # code and command of the newest round in a pod
        self.steps: dict[str, int] = {}
        self.checkpoint: int | None = None
        self.answer: dict[str, Any] = {}  # of programs that are asked to save and do not report saves
        self._ids = itertools.count(1)

    @property
    def status(self) -> TrainingJobStatus:
        assert self.job is not None
        return self.job.status

    @property
    def spec(self) -> TrainingJobSpec:
        """Of the job, with the values of its profile."""
        assert self.job is not None
        return with_profile(self.job, apply_profile(self.job, self.profile).pinned).spec

    # What the controller does.

    def view(self) -> View:
        assert self.job is not None
        if not self.delayed:
            self.observe()
        verdict = apply_profile(self.job, self.profile)
        spec = self.spec
        return View(
            job=replace(self.job, spec=spec),
            pods=tuple(self.cache.values()),
            agents={uid: agent for uid, agent in self.registry.items() if uid in self.cache},
            commands={uid: command for uid, command in self.commands.items() if uid in self.cache},
            now=self.now,
            since=self.since,
            refusal=self.refusal,
            configuration=configuration(spec),
            images=self.images,
            files_stay=self.files_stay,
            program=program_of(spec, worker_command(spec, None), own_env(spec)),
            agentless=is_agentless(spec),
            procs=requested_procs(spec),
            scheduling=self.scheduling(),
            node_memory=self.node_memory,
            profile=verdict,
        )

    def scheduling(self) -> Request:
        """The scheduler that the job gets here, with its objects."""
        assert self.job is not None
        before = enforced_by(self.job.status)
        on = [self.scheduler] if self.scheduler is not None else []
        served = {each.name: each.kinds[0] for each in on}
        queues = {each.name: [queue.name for queue in self.sources.get("localqueues", ())] for each in on}
        request = choose(self.spec.scheduling, before, on, served, queues)
        objects = tuple(self.objects.values()) if request.kind is not None else ()
        return replace(request, known=self.objects_known, objects=objects, sources=self.sources, template=TEMPLATE)

    def step(self) -> Plan:
        """One reconcile: plan and carry out."""
        decided = plan(self.view())
        self.apply(decided)
        return decided

    def settle(self, most: int = 20) -> list[Plan]:
        """Reconcile until there is nothing left to do."""
        plans = []
        for _ in range(most):
            decided = self.step()
            plans.append(decided)
            if not decided.actions or self.job is None:
                return plans
        raise AssertionError(f"no fixpoint within {most} plans, last: {plans[-1]}")

    def apply(self, decided: Plan) -> None:
        for action in decided.actions:
            self.carry_out(action)

    def carry_out(self, action: Any) -> None:
        if isinstance(action, WriteStatus) and self.job is not None:
            self.job = replace(self.job, status=action.status)
        elif isinstance(action, CreatePod):
            self.create(action)
        elif isinstance(action, DeletePod):
            self.delete(action.uid, forced=action.grace_seconds == 0)
        elif isinstance(action, CommandAgent):
            self.commands[action.pod_uid] = action
            self.obey(action.pod_uid)
        elif isinstance(action, EmitEvent):
            self.events.append(action)
        elif isinstance(action, DeleteJob):
            self.job = None
        else:
            self.change_object(action)

    def change_object(self, change: Change) -> None:
        """The API server takes a write to an object of a scheduler; a precondition that fails changes nothing."""
        there = self.objects.get(change.name)
        if isinstance(change, CreateObject):
            if there is None:
                number = next(self._ids)
                document = json.loads(json.dumps(change.manifest))
                self.objects[change.name] = GangObject(
                    kind=change.kind, name=change.name, uid=f"object-{number}", version=str(number), document=document
                )
        elif there is not None and there.uid == change.uid:
            if isinstance(change, DeleteObject):
                del self.objects[change.name]
            elif change.version in {"", there.version}:
                document = merged(there.document, change.patch)
                self.objects[change.name] = replace(there, version=str(next(self._ids)), document=document)

    def create(self, action: CreatePod) -> None:
        if self.refusing:
            begun = self.refusal.since if self.refusal is not None else self.now
            self.refusal = Refusal(reason=Reason("QuotaExceeded"), since=begun, until=self.now + 5)
            return
        self.refusal = None
        if any(pod.name == action.name for pod in self.pods.values()):
            return
        uid = f"uid-{next(self._ids)}"
        self.created.append(action)
        self.pods[uid] = Pod(
            uid=uid,
            name=action.name,
            index=action.index,
            incarnation=action.incarnation,
            configuration=configuration(self.spec) if self.job is not None else "",
            images=action.images,
            phase="Pending",
            created=self.now,
            reason="InsufficientGPU",
            message="need 8, free 0",
        )
        self.place()
        self.cache[uid] = self.pods[uid]

    def delete(self, uid: str, *, forced: bool = False) -> None:
        """Deletion was asked for: a dead pod goes at once, a live one when its agent is done, unless it is forced."""
        pod = self.pods.get(uid)
        if pod is None:
            self.cache.pop(uid, None)
            return
        if forced or not pod.alive or pod.phase == "Pending":
            self.vanish(uid)
            self.cache.pop(uid, None)
        else:
            self.pods[uid] = replace(pod, deleting=True)
            if uid in self.cache:
                self.cache[uid] = replace(self.cache[uid], deleting=True)

    # What happens outside.

    def observe(self) -> None:
        """Everything that happened reaches the controller."""
        self.cache = dict(self.pods)
        self.registry = dict(self.agents)
        self.commands = {uid: command for uid, command in self.commands.items() if uid in self.pods}

    def place(self) -> None:
        """The scheduler gives nodes to pods, one by one, for as long as there is room."""
        for uid, pod in self.pods.items():
            if pod.phase == "Pending" and not pod.node and (self.room is None or self.held() < self.room):
                self.pods[uid] = replace(pod, node=f"node-{pod.index}", placed=self.now, reason="", message="")

    def held(self) -> int:
        """Pods that take up room."""
        return sum(pod.alive and bool(pod.node) for pod in self.pods.values())

    def start_pods(self) -> None:
        """Kubelets start what was placed, agents call in."""
        self.place()
        for uid, pod in list(self.pods.items()):
            if pod.phase == "Pending" and pod.node:
                self.pods[uid] = replace(pod, phase="Running", started=self.now, reason="", message="")
                self.call_in(uid)

    def call_in(self, uid: str) -> None:
        pod = self.pods[uid]
        self.agents[uid] = Agent(
            pod_uid=uid,
            instance=f"instance-{next(self._ids)}",
            state="ready",
            seen=self.now,
            content=self.content,
            codes=self.pushed.get(uid, ()),
            address=f"127.0.0.{pod.index + 1}",
            master_port=20000 + next(self._ids),
        )
        self.training.pop(uid, None)
        self.obey(uid)

    def push(self, digest: str, uids: Iterable[str] | None = None) -> None:
        """Code is pushed into running pods; their agents keep two of them."""
        for uid in [*self.agents] if uids is None else uids:
            self.pushed[uid] = (*self.pushed.get(uid, ()), digest)[-2:]
            self.agents[uid] = replace(self.agents[uid], codes=self.pushed[uid])

    def codes_of(self, uid: str) -> set[str]:
        return {digest[:12] for digest in self.pushed.get(uid, ())}

    def edit_code(self, digest: str, *, arrived: bool = True, **spec: Any) -> None:
        """The spec gets other code, which has been stored as a whole where new pods find it."""
        assert self.job is not None
        self.edit(code=Code(digest=digest), **spec)
        if arrived:
            self.job = replace(self.job, metadata=replace(self.job.metadata, annotations={CODE_ARRIVED: digest}))

    def obey(self, uid: str) -> None:
        """The agent does what the protocol says about the command it finds."""
        agent, command, pod = self.agents.get(uid), self.commands.get(uid), self.pods.get(uid)
        if agent is None or command is None or pod is None or not pod.alive:
            return
        if command.verb == "run" and command.round > agent.round:
            self.training[uid] = command.round
            self.ran[uid] = (command.bundle.get("digest", ""), command.program.get("command", []))
            found = "source" in command.bundle  # by the agent: it was not sent
            assert found or command.bundle.get("digest", "")[:12] in {code_at(pod.configuration), *self.codes_of(uid)}
            self.steps[uid] = self.checkpoint or 0
            self.agents[uid] = replace(agent, state="running", round=command.round, exit=None, reports=())
        elif command.verb == "stop" and self.training.get(uid, command.round + 1) <= command.round:
            self.end_workers(uid, 143, asked=True)
        elif command.verb == "save-and-stop" and self.training.get(uid, command.round + 1) <= command.round:
            self.checkpoint = max(self.checkpoint or 0, self.steps.get(uid, 0))
            self.end_workers(uid, 75, asked=True, saved=True)
        elif command.verb == "exit":
            self.training.pop(uid, None)
            self.end_pod(uid, command.code)

    def end_workers(self, uid: str, code: int, *, asked: bool = False, saved: bool = False, **failure: Any) -> None:
        """The workers of a pod end; its agent reports how and is ready again. The code is that of a trainer of ours."""
        agent = self.agents[uid]
        number = self.training.pop(uid, agent.round)
        failure = {"classified": True, **failure} if failure or (code and not asked) else {}
        why = Failure(code=code, time=self.now, **failure) if failure else None
        ended = RoundExit(round=number, code=code, asked=asked, saved=saved, time=self.now, failure=why, **self.answer)
        self.agents[uid] = replace(agent, state="ready", exit=ended, seen=self.now)

    def end_pod(self, uid: str, code: int, reason: str = "", message: str = "") -> None:
        """The pod's main process ended."""
        self.training.pop(uid, None)
        self.agents.pop(uid, None)
        pod = self.pods[uid]
        phase = "Succeeded" if code == 0 else "Failed"
        self.pods[uid] = replace(pod, phase=phase, exit_code=code, finished=self.now, reason=reason, message=message)

    def vanish(self, uid: str) -> None:
        """The pod and its object are gone, whatever it was doing."""
        for table in (self.pods, self.agents, self.training, self.commands):
            table.pop(uid, None)

    def finish_deletions(self) -> None:
        for uid, pod in list(self.pods.items()):
            if pod.deleting:
                self.vanish(uid)

    def advance_training(self, steps: int = 1, *, save: bool = False, total: int = 100) -> None:
        """Every rank that trains makes steps and reports them."""
        for uid, number in self.training.items():
            self.steps[uid] += steps
            self.report(uid, number, self.steps[uid], save=save, total=total)
        if save and self.training:
            self.checkpoint = max(self.steps[uid] for uid in self.training)

    def report(self, uid: str, number: int, step: int, *, save: bool = False, total: int = 100) -> None:
        agent = self.agents[uid]
        known = step if save else self.checkpoint
        told = RankReport(
            round=number,
            rank=self.status.rendezvous.members.index(uid) if uid in self.status.rendezvous.members else 0,
            step=step,
            total_steps=total,
            phase="step",
            time=self.now,
            metrics={"loss": 1.0 / (1 + step)},
            throughput={"stepsPerSecond": 2.0},
            checkpoint={"step": known, "time": self.now, "path": f"step-{known}"} if known else None,
        )
        self.agents[uid] = replace(agent, reports=(told,), seen=self.now)

    def restart_operator(self) -> None:
        """A new process: nothing commanded, nothing heard, only what was persisted and the cluster."""
        self.commands.clear()
        self.since = self.now
        self.refusal = None
        self.observe()

    def edit(self, **spec: Any) -> None:
        assert self.job is not None
        meta = replace(self.job.metadata, generation=self.job.metadata.generation + 1)
        self.job = replace(self.job, metadata=meta, spec=replace(self.job.spec, **spec))

    def at(self, index: int) -> str:
        """Uid of the live pod of an index."""
        return next(uid for uid, pod in self.pods.items() if pod.index == index and pod.alive and not pod.deleting)

    def to_running(self) -> "World":
        """A gang that trains: the usual beginning of a test."""
        self.settle()
        self.start_pods()
        self.settle()
        self.now += 1
        self.advance_training()
        self.settle()
        assert self.status.state == "Running"
        return self


class Ports:
    """The reconciler's ports `Cluster` and `Agents` over a `World`; `failing` holds errors to raise, by method name."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.failing: dict[str, list[Exception]] = {}
        self.calls: list[str] = []
        self.busy = False

    def job(self, key: tuple[str, str]) -> TrainingJob | None:
        job = self.world.job
        return job if job is not None and job.key == key else None

    def pods(self, job_uid: str) -> tuple[Pod, ...]:
        self.world.observe()
        return tuple(self.world.cache.values())

    def images(self, job: TrainingJob) -> Images | None:
        return self.world.images

    def program(self, job: TrainingJob) -> Program | None:
        return program_of(job.spec, worker_command(job.spec, None), own_env(job.spec))

    def keeps_files(self, job: TrainingJob) -> bool:
        return self.world.files_stay

    def scheduling(self, job: TrainingJob) -> Request:
        return self.world.scheduling()

    def profile(self, job: TrainingJob) -> ProfileVerdict:
        return apply_profile(job, self.world.profile)

    def node_memory(self) -> NodeMemory:
        return self.world.node_memory

    async def change_object(self, job: TrainingJob, change: Change) -> None:
        self._call("change_object", change)

    async def create_pod(self, job: TrainingJob, action: CreatePod) -> None:
        self._call("create_pod", action)

    async def delete_pod(self, job: TrainingJob, action: DeletePod) -> None:
        self._call("delete_pod", action)

    async def write_status(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        self._call("write_status", WriteStatus(status=status, urgent=True))

    async def emit_event(self, job: TrainingJob, event: EmitEvent) -> None:
        self._call("emit_event", event)

    async def delete_job(self, job: TrainingJob) -> None:
        self._call("delete_job", DeleteJob(uid=job.metadata.uid))

    def of(self, pod_uids: Iterable[str]) -> Mapping[str, Agent]:
        return {uid: self.world.registry[uid] for uid in pod_uids if uid in self.world.registry}

    def command(self, action: CommandAgent) -> None:
        self._call("command", action)

    def commanded(self, pod_uids: Iterable[str]) -> Mapping[str, CommandAgent]:
        return {uid: self.world.commands[uid] for uid in pod_uids if uid in self.world.commands}

    def forget(self, pod_uid: str) -> None:
        self.world.commands.pop(pod_uid, None)

    def _call(self, name: str, action: Any) -> None:
        self.calls.append(name)
        if self.failing.get(name):
            raise self.failing[name].pop(0)
        self.world.carry_out(action)
