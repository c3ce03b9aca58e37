"""How long one plan takes, and how many jobs one controller can manage: `python benchmarks/plan.py [JOBS]`."""

import asyncio
import statistics
import sys
import time
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from torchyard.api.resource import ObjectMeta, TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.status import TrainingJobStatus
from torchyard.api.values import Time
from torchyard.reconcile.actions import CommandAgent, CreatePod, DeletePod, EmitEvent, WriteStatus
from torchyard.reconcile.loop.controller import Controller, Settings
from torchyard.reconcile.node_memory import NodeMemory
from torchyard.reconcile.observed import Agent, Pod, RankReport, View
from torchyard.reconcile.plan import plan
from torchyard.reconcile.ports import Key
from torchyard.reconcile.profile import NO_PROFILE, ProfileVerdict
from torchyard.schedulers.none import NOTHING
from torchyard.schedulers.protocol import Change, Request

NODES = 8
START = 1_800_000_000.0


class Memory:
    """Both ports of the engine over dictionaries: every pod runs at once, every agent obeys at once."""

    def __init__(self) -> None:
        self.jobs: dict[Key, TrainingJob] = {}
        self.owned: dict[str, dict[str, Pod]] = {}
        self.agents: dict[str, Agent] = {}
        self.commands: dict[str, CommandAgent] = {}

    def job(self, key: Key) -> TrainingJob | None:
        return self.jobs.get(key)

    @property
    def busy(self) -> bool:
        return False

    def images(self, job: TrainingJob) -> None:
        del job

    def program(self, job: TrainingJob) -> None:
        del job

    def keeps_files(self, job: TrainingJob) -> bool:
        del job
        return True

    def pods(self, job_uid: str) -> tuple[Pod, ...]:
        return tuple(self.owned.get(job_uid, {}).values())

    def profile(self, _job: TrainingJob) -> ProfileVerdict:
        return NO_PROFILE

    def node_memory(self) -> NodeMemory:
        return NodeMemory()

    def scheduling(self, job: TrainingJob) -> Request:
        del job
        return Request(name="", scheduler=NOTHING)

    async def create_pod(self, job: TrainingJob, action: CreatePod) -> None:
        uid = f"{job.metadata.uid}/{action.name}"
        pod = Pod(
            uid=uid,
            name=action.name,
            index=action.index,
            incarnation=action.incarnation,
            phase="Running",
            created=START,
            started=START,
        )
        self.owned.setdefault(job.metadata.uid, {})[uid] = pod
        self.agents[uid] = Agent(
            pod_uid=uid, instance="1", state="ready", seen=START, address="10.0.0.1", master_port=29500
        )

    async def delete_pod(self, job: TrainingJob, action: DeletePod) -> None:
        raise AssertionError((job.key, action))

    async def change_object(self, job: TrainingJob, change: Change) -> None:
        raise AssertionError((job.key, change))

    async def write_status(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        self.jobs[job.key] = replace(job, status=status)

    async def emit_event(self, job: TrainingJob, event: EmitEvent) -> None:
        del job, event

    async def delete_job(self, job: TrainingJob) -> None:
        raise AssertionError(job)

    def of(self, pod_uids: Iterable[str]) -> Mapping[str, Agent]:
        return {uid: self.agents[uid] for uid in pod_uids if uid in self.agents}

    def commanded(self, pod_uids: Iterable[str]) -> Mapping[str, CommandAgent]:
        return {uid: self.commands[uid] for uid in pod_uids if uid in self.commands}

    def forget(self, pod_uid: str) -> None:
        self.commands.pop(pod_uid, None)

    def command(self, action: CommandAgent) -> None:
        self.commands[action.pod_uid] = action
        if action.verb == "run":
            agent = self.agents[action.pod_uid]
            self.agents[action.pod_uid] = replace(
                agent, state="running", round=action.round, reports=(report(action.node_rank, 10),)
            )


def report(rank: int, step: int) -> RankReport:
    return RankReport(
        round=1,
        rank=rank,
        step=step,
        total_steps=1000,
        phase="step",
        time=START,
        metrics={f"metric{number}": 1.0 for number in range(10)} if rank == 0 else {},
        throughput={"stepsPerSecond": 3.0},
        checkpoint={"step": 5, "time": START, "path": "step-5"},
    )


def _submit(memory: Memory, count: int) -> None:
    for number in range(count):
        meta = ObjectMeta(name=f"job-{number}", uid=f"uid-{number}", creation_timestamp=Time.of(START))
        job = TrainingJob(metadata=meta, spec=TrainingJobSpec(nodes=NODES))
        memory.jobs[job.key] = job


async def _reconcile_all(controller: Controller, memory: Memory, now: list[float]) -> float:
    begun = time.perf_counter()
    for key in list(memory.jobs):
        await controller.reconcile(key)
    now[0] += 1.0
    return len(memory.jobs) / (time.perf_counter() - begun)


def _microseconds(view: View, times: int = 2000) -> tuple[float, float]:
    samples = []
    for _ in range(times):
        begun = time.perf_counter_ns()
        plan(view)
        samples.append((time.perf_counter_ns() - begun) / 1000)
    return statistics.median(samples), statistics.quantiles(samples, n=100)[98]


async def main(jobs: int) -> None:
    memory, now = Memory(), [START + 1]
    controller = Controller(memory, memory, clock=lambda: now[0], settings=Settings())
    _submit(memory, jobs)
    rows = [(f"create {jobs} gangs of {NODES}", f"{await _reconcile_all(controller, memory, now):,.0f} reconciles/s")]
    rows.append(("open their rounds", f"{await _reconcile_all(controller, memory, now):,.0f} reconciles/s"))
    await _reconcile_all(controller, memory, now)
    states = {job.status.state for job in memory.jobs.values()}
    assert states == {"Running"}, states
    rows.append(("all running, nothing new", f"{await _reconcile_all(controller, memory, now):,.0f} reconciles/s"))
    for uid, agent in memory.agents.items():
        memory.agents[uid] = replace(agent, reports=(report(agent.reports[0].rank, 11),))
    now[0] += 10
    rows.append(("all running, new figures", f"{await _reconcile_all(controller, memory, now):,.0f} reconciles/s"))
    view = controller.view(next(iter(memory.jobs.values())))
    assert not any(isinstance(action, WriteStatus) for action in plan(view).actions)
    median, slow = _microseconds(view)
    rows.insert(0, (f"plan, steady job of {NODES} pods", f"{median:,.0f} us median, {slow:,.0f} us p99"))
    width = max(len(name) for name, _ in rows)
    for name, figure in rows:
        print(f"{name:<{width}}  {figure}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
