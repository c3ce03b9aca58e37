"""Every reason of the catalogue in the situation that produces it, with the message that its user reads.

`messages.yaml` is read like a page: `TORCHYARD_WRITE_GOLDEN=1 pytest tests/reconcile/test_every_reason.py` writes it
again; read the difference as the user of each job would, then commit.
"""

import asyncio
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace
from tests.kubernetes.test_invalid_jobs import SPEC, STATUS, Server
from tests.kubernetes.test_invalid_jobs import told as told_of
from tests.kubernetes.test_pod_ends import ENDED
from tests.kubernetes.test_pod_waits import MOUNTS, WAITING
from tests.kubernetes.test_refusals import REFUSALS
from tests.reconcile import test_pace as pace
from tests.reconcile.test_advisories import reported
from tests.reconcile.test_exports import export
from tests.reconcile.test_inputs import FETCHING, have
from tests.reconcile.test_inputs import started as with_input
from tests.schedulers.test_kueue import queued
from tests.support.kubernetes.pod_json import ON_NODE, pod, seen
from tests.support.kueue import admit, with_status, workload
from tests.support.reconcile.running_controller import controlled, pass_time
from tests.support.reconcile.scenarios import fail, recover
from tests.support.reconcile.world import Ports, World
from tests.support.virtual_time import virtual_time

from torchyard.api.exit_codes import EXIT_REASONS, ExitCode
from torchyard.api.names import CODE_ARRIVED
from torchyard.api.profiles.resource import read_profile
from torchyard.api.reasons import MAX_MESSAGE, Reason, say
from torchyard.api.spec_code import Code, GitCode
from torchyard.api.spec_placement import Elastic, Scheduling
from torchyard.api.spec_reliability import Health, Restart
from torchyard.api.spec_workload import Trainer
from torchyard.api.status import TrainingJobStatus
from torchyard.api.values import Duration
from torchyard.kubernetes.diagnostics.admission import refused
from torchyard.local.events import Events
from torchyard.local.run import RunFolder
from torchyard.reconcile.observed import Refusal, RequirementsReport
from torchyard.reconcile.plan import plan, stalled, with_conditions
from torchyard.reconcile.ports import Refused
from torchyard.schedulers.volcano import Volcano

MESSAGES = Path(__file__).with_name("messages.yaml")
SLOW = [0.1, 0.19, 0.1, 0.1]
Said = dict[str, str]


def said(*worlds: World) -> Said:
    """What the user of a job reads, by reason: conditions, events, warnings, and above all the status."""
    found: Said = {}
    for world in worlds:
        status = world.status
        found |= {each.reason: each.message for each in status.conditions}
        found |= {event.reason: event.message for event in world.events}
        found |= {reason: text for text in status.warnings for reason in Reason if text.startswith(reason.sentence)}
        found[status.reason] = status.message
    return found


def slower() -> Said:
    world = pace.gang()
    for seconds in (0.1, *(0.2,) * 8):
        pace.reported(world, [seconds] * 4)
    return said(world)


def waits(reason: str, message: str, node: str = "") -> Said:
    world = World(1)
    world.room = 0
    world.settle()
    uid = world.at(0)
    world.pods[uid] = replace(world.pods[uid], reason=reason, message=message, node=node)
    world.settle()
    return said(world)


def pulling() -> Said:
    world = World(2)
    world.settle()
    world.place()
    for uid, each in world.pods.items():
        world.pods[uid] = replace(each, pulling="ghcr.io/me/train:1.0", pulling_since=world.now)
    world.now += 15
    world.settle()
    return said(world)


def waiting_pod(name: str) -> Said:
    found = seen(WAITING[name][0]).pod
    return waits(found.reason, found.message, found.node)


def ended_pod(name: str) -> Said:
    world = World(1, restart=Restart(max_restarts=5)).to_running()
    uid = world.at(0)
    ours, ended = world.pods[uid], seen(pod(spec=ON_NODE, status=ENDED[name][0])).pod
    world.agents.pop(uid)
    world.pods[uid] = replace(ended, uid=uid, name=ours.name, index=0, incarnation=0, finished=world.now)
    world.settle()
    return said(world)


def rejected(name: str) -> Said:
    found = refused(REFUSALS[name][0])
    assert isinstance(found, Refused)
    return held(found.reason, found.message, permanent=found.permanent)


def held(reason: str, message: str, *, permanent: bool = False) -> Said:
    world = World(2)
    world.room = 0
    world.refusal = Refusal(
        reason=Reason(reason), message=message, since=world.now, until=world.now + 60, permanent=permanent
    )
    world.settle()
    return said(world)


def exits(code: int) -> Said:
    """A worker ends with a code that its program, a built-in trainer, means as the table says."""
    raised = {64: "params.lr: 0 is not positive", 65: "row 7: not a number", 74: "OSError: step-9: I/O error"}
    signal = f"killed by signal {code - 128}" if code > 128 else "RuntimeError: boom"
    world = World(1, trainer=Trainer(name="mine:Workload")).to_running()
    fail(world, 0, code, rank=0, exception="", message=raised.get(code, signal))
    world.settle()
    return said(world)


def outside() -> World:
    """A job of two pods whose profile allows one."""
    world = World(2, profile="research")
    world.profile = read_profile({"metadata": {"name": "research"}, "spec": {"limits": {"nodes": 1}}})
    world.settle()
    return world


def budget(reason: Reason, failures: int = 9, **restart: object) -> Said:
    world = World(1, restart=Restart(**restart)).to_running()  # type: ignore[arg-type]
    for number in range(failures):
        if world.status.state == "Failed":
            break
        fail(world, 0, rank=0, message="boom" if reason == Reason.REPEATED_FAILURE else f"boom {number}")
        recover(world)
    return said(world)


def late(change: Callable[[World], None], seconds: float, world: World) -> Said:
    change(world)
    world.now += seconds
    world.settle()
    return said(world)


def begun(**spec: object) -> World:
    world = World(2, **spec)
    world.settle()
    return world


def nothing(_world: World) -> None:
    return None


def unanswered() -> Said:
    world = World(2)
    world.apply(replace(world.step(), actions=()))
    world.pods.clear()
    world.now += 25
    for action in plan(world.view()).actions:
        if type(action).__name__ != "CreatePod":
            world.carry_out(action)
    return said(world)


def silent() -> Said:
    world = begun()
    for uid in world.pods:
        world.pods[uid] = replace(world.pods[uid], phase="Running", started=world.now, reason="", message="")
    waiting_for_agents = said(world)
    world.settle()
    waiting_for_agents |= said(world)
    return {**waiting_for_agents, **late(nothing, 31, world)}


def running(**fields: object) -> World:
    world = World(1).to_running()
    uid = world.at(0)
    (report,) = world.agents[uid].reports
    world.agents[uid] = replace(world.agents[uid], reports=(replace(report, **fields),), seen=world.now)
    return world


def started() -> World:
    world = World(1, trainer=Trainer(name="cvrp"))
    for _ in range(2):
        world.settle()
        world.start_pods()
    world.settle()
    return world


def partly() -> Said:
    world = World(2)
    world.room = 1
    world.settle()
    world.settle()
    return late(nothing, 3600, world)


def without_its_scheduler() -> Said:
    world = World(2, scheduling=Scheduling(gang="volcano"))
    world.settle()
    return said(world)


def before_its_group_is_seen() -> Said:
    world = World(2)
    world.scheduler = Volcano()
    world.step()
    return said(world)


def in_queue(reason: str, message: str) -> Said:
    world = queued()
    if reason == "Deactivated":
        there = workload(world)
        spec = there.document["spec"] | {"active": False}
        world.objects[there.name] = replace(there, document=there.document | {"spec": spec})
    if reason == "Admitted":
        admit(world)
        with_status(world, {"Admitted": (False, "UnsatisfiedChecks", message)})
    elif reason:
        with_status(world, {"QuotaReserved": (False, reason, message)})
    world.settle()
    return said(world)


def leaves() -> Said:
    world = World(1, trainer=Trainer(name="mine:Workload")).to_running()
    world.pods[world.at(0)] = replace(world.pods[world.at(0)], leaving="taint ToBeDeletedByClusterAutoscaler=1")
    world.step()
    return said(world)


def resizes() -> Said:
    elastic = Elastic(min_nodes=1, max_nodes=3)
    world = World(3, trainer=Trainer(name="mine:Workload"), elastic=elastic).to_running()
    world.edit(nodes=2)
    world.settle()
    return said(world)


def edits_code() -> Said:
    world = World(2, code=Code(digest="a" * 64))
    world.edit_code("a" * 64)
    world.to_running()
    world.push("b" * 64)
    world.edit_code("b" * 64)
    world.settle()
    return said(world)


def suspends() -> Said:
    world = World(2).to_running()
    world.edit(suspend=True)
    world.apply(plan(world.view()))
    suspending = said(world)
    world.settle()
    world.finish_deletions()
    world.settle()
    suspended = said(world)
    world.edit(suspend=False)
    world.settle()
    return {**suspending, **suspended, **{key: text for key, text in said(world).items() if key == Reason.RESUMED}}


def lost(change: Callable[[World, str], None]) -> Said:
    world = World(2).to_running()
    change(world, world.at(1))
    world.settle()
    return said(world)


def silent_node(world: World, uid: str) -> None:
    world.pods[uid] = replace(world.pods[uid], phase="Unknown")
    world.agents[uid] = replace(world.agents[uid], connected=False)
    world.now += 30


def new_agent(world: World, uid: str) -> None:
    world.call_in(uid)
    world.commands.pop(uid, None)
    world.agents[uid] = replace(world.agents[uid], state="ready", round=0)


def differs() -> Said:
    world = World(2).to_running()
    world.vanish(world.at(1))
    world.content = "content-2"
    world.settle()
    world.now += 400
    world.start_pods()
    world.settle()
    return said(world)


def edited() -> Said:
    world = World(1, trainer=Trainer(name="cvrp")).to_running()
    world.edit(env=[], working_dir="/elsewhere")
    world.settle()
    return said(world)


def deleted() -> Said:
    world = World(1).to_running()
    assert world.job is not None
    metadata = replace(world.job.metadata, deletion_timestamp="2027-01-15T08:00:00Z", finalizers=["example.com/audit"])
    world.job = replace(world.job, metadata=metadata)
    for action in plan(world.view()).actions:
        world.carry_out(action)
    return said(world)


def unequal() -> Said:
    """One member has failed, and the cause of the other's end is not known yet."""
    world = World(2).to_running()
    world.end_workers(world.at(0), 143, asked=True)
    world.apply(plan(world.view()))
    closed = say(Reason(world.status.attempts[-1].reason))
    return {**said(world), world.status.attempts[-1].reason: closed}


def exported(*verdicts: bool | None) -> Said:
    world = World(1).to_running()
    artifacts = [export(f"onnx/{number}", verified) for number, verified in enumerate(verdicts)]
    status = with_conditions(replace(world.status, artifacts=artifacts), world.now, generation=1)
    return {each.reason: each.message for each in status.conditions}


def succeeded() -> Said:
    world = World(1).to_running()
    world.advance_training(4, save=True)
    world.settle()
    world.end_workers(world.at(0), 0)
    world.settle()
    return said(world)


def wrong_parameters() -> Said:
    world = World(1, trainer=Trainer(name="cvrp", params={"embedings": 30}))
    world.settle()
    return said(world)


def begin_of_conditions() -> str:
    """A job that cannot be reconciled before it has a status."""
    status = stalled(TrainingJobStatus(), 1.0, generation=1, evidence="boom")
    return status.message


def plain_program() -> World:
    world = World(1, command=["sleep", "1d"])
    for _ in range(2):
        world.settle()
        world.start_pods()
    world.settle()
    return world


def noticed(text: str) -> Said:
    world = World(1).to_running()
    uid = world.at(0)
    world.agents[uid] = replace(world.agents[uid], notices=(text,))
    world.settle()
    return said(world)


def recovering() -> Said:
    """What delayed the recovery is over, and the gang is not complete yet."""
    world = World(2).to_running()
    world.vanish(world.at(1))
    world.settle()
    uid = world.at(1)
    world.pods[uid] = replace(world.pods[uid], reason="InsufficientGPU", message="need 8, free at most 0")
    world.settle()
    world.pods[uid] = replace(world.pods[uid], reason="", message="")
    world.settle()
    return said(world)


async def _unreadable() -> Said:
    status = await told_of(Server(spec=SPEC, status=STATUS))
    return {each["reason"]: status["message"] for each in status["conditions"] if each["type"] == "Stalled"}


def stalled_job() -> Said:
    world = World(1)
    fails_to_create(world)
    return said(world)


@virtual_time
async def fails_to_create(world: World) -> None:
    ports = Ports(world)
    ports.failing["create_pod"] = [RuntimeError("boom") for _ in range(4)]
    async with controlled(world, ports):
        await pass_time(world, 0.5)


async def _full_disk(folder: Path) -> Said:
    events = Events(RunFolder(folder), lambda: None)
    events.trouble(f"{folder / 'status.json'}: {os.strerror(errno.ENOSPC)}")
    await events.close()
    return {event.reason: event.message.replace(str(folder), "RUN") for event in events.take()}


POD_WAITS = {
    reason: name for name, (_, reason, _) in reversed(WAITING.items()) if reason and name != "there are no nodes"
} | {"Unschedulable": "there are no nodes"}
POD_ENDS = {reason: name for name, (_, reason, *_) in reversed(ENDED.items()) if reason}
REJECTIONS = {reason: name for name, (_, reason, _) in reversed(REFUSALS.items())}
MOUNTED = {found[0]: found for _, _, found in MOUNTS.values() if found[0]}
OF_THE_CLUSTER = {
    "ClusterTooSmall": "it needs 24 GPUs (3 pods x 8 GPUs), the 2 nodes it may use have 16 GPUs, at most 8 GPUs on one",
    "NodesNotReady": "a: unreachable, b: disk-pressure",
}
OF_OBJECTS = {
    "NameConflict": "service ty-job does not belong to this job",
    "PredecessorStopping": "job-0-0, job-0-1",
    "PodAltered": "label torchyard.dev/job-uid",
    "SchedulerRejected": "PodGroup job-job-uid: spec.minMember: Invalid value: 0",
}


def fetching() -> Said:
    world = with_input()
    have(world, FETCHING, FETCHING)
    return said(world)


def fetching_code() -> Said:
    world = World(2, code=Code(git=GitCode(url="https://host/code"), commit="c" * 40))
    world.settle()
    world.start_pods()
    have(world, replace(FETCHING, name="spec.code"), replace(FETCHING, name="spec.code"))
    return said(world)


def installing() -> Said:
    world = World(1, code=Code(path=".", requirements="requirements.txt", digest="ab" * 32))
    world.job = replace(world.job, metadata=replace(world.job.metadata, annotations={CODE_ARRIVED: "ab" * 32}))
    world.settle()
    world.start_pods()
    report = RequirementsReport(state="installing", packages=14)
    uid = world.at(0)
    world.agents[uid] = replace(world.agents[uid], state="starting", requirements=report)
    world.settle()
    return said(world)


def without_input(code: ExitCode, message: str) -> Said:
    world = with_input()
    world.end_pod(world.at(0), code, "", f"input model: {message}")
    world.settle()
    return said(world)


OF_QUEUES = {
    "WaitingInQueue": ("", ""),
    "WaitingForQuota": ("Pending", "insufficient unused quota for nvidia.com/gpu in flavor spot, 8 more needed"),
    "ExceedsMaxQuota": (
        "Pending",
        "insufficient quota for nvidia.com/gpu in flavor spot: 16 > maximum capacity (8)",
    ),
    "NoMatchingFlavor": ("Pending", "flavor spot doesn't match node affinity"),
    "FlavorNotFound": ("Pending", "flavor spot not found"),
    "QueueNotFound": ("Inadmissible", "LocalQueue research doesn't exist"),
    "QueueStopped": ("Inadmissible", "ClusterQueue cluster is stopped"),
    "QueueMisconfigured": ("Misconfigured", "resources exceed the LimitRange"),
    "WaitingForAdmissionChecks": ("Admitted", "The workload has not all checks ready"),
    "WorkloadDeactivated": ("Deactivated", "The workload is deactivated"),
}
OF_EVENTS = {"NameTaken": "pod job-0-0 without a controller", "ForgedPod": "pod job-0-1"}
RANKS = {"alone_seconds": 61.0, "device": "cpu"}

SITUATIONS: dict[str, Callable[[], Said]] = {
    **{code: lambda name=name: waiting_pod(name) for code, name in POD_WAITS.items()},
    **{code: lambda found=found: waits(*found, node="gpu-7") for code, found in MOUNTED.items()},
    **{code: lambda code=code, text=text: waits(code, text) for code, text in OF_THE_CLUSTER.items()},
    **{code: lambda name=name: ended_pod(name) for code, name in POD_ENDS.items()},
    **{code: lambda name=name: rejected(name) for code, name in REJECTIONS.items()},
    **{code: lambda facts=facts: in_queue(*facts) for code, facts in OF_QUEUES.items()},
    **{code: lambda code=code, text=text: held(code, text) for code, text in OF_OBJECTS.items()},
    **{code: lambda code=code, text=text: {code: say(code, text)} for code, text in OF_EVENTS.items()},
    **{known: lambda code=code: exits(code) for code, known in EXIT_REASONS.items() if code != ExitCode.DONE},
    "KilledBySignal": lambda: exits(128 + 7),
    "JobCreated": lambda: {"JobCreated": begin_of_conditions()},
    "PullingImage": pulling,
    "WaitingForPods": lambda: said(begun()),
    "PodsNotCreated": unanswered,
    "WaitingForAgents": silent,
    "FetchingInputs": fetching,
    "FetchingCode": fetching_code,
    "CodeNotFetched": lambda: without_input(ExitCode.CODE_NOT_FETCHED, "git: fatal: unable to access (6 attempts)"),
    "CodeRejected": lambda: without_input(ExitCode.CODE_REJECTED, "git: fatal: Authentication failed"),
    "InstallingRequirements": installing,
    "RequirementsFailed": lambda: without_input(ExitCode.REQUIREMENTS_FAILED, "uv: there is no version of a==9"),
    "RequirementsNotInstalled": lambda: without_input(
        ExitCode.REQUIREMENTS_NOT_INSTALLED, "uv: Failed to fetch: connection refused (6 attempts)"
    ),
    "InputNotFetched": lambda: without_input(
        ExitCode.INPUT_NOT_FETCHED, "127.0.0.1:9: Connection refused (6 attempts)"
    ),
    "InputRejected": lambda: without_input(ExitCode.INPUT_REJECTED, "hf://org/model@main: 404 Repository Not Found"),
    "AgentSilent": silent,
    "GangIncomplete": partly,
    "SchedulerUnavailable": without_its_scheduler,
    "WaitingForScheduler": before_its_group_is_seen,
    "ProfileNotFound": lambda: said(begun(profile="research")),
    "OutsideProfile": lambda: said(outside()),
    "CodeMissing": lambda: said(begun(code=Code(path=".", digest="ab" * 32))),
    "RoundOpened": lambda: said(World(1).to_running()),
    "ConfigurationChanged": edited,
    "Starting": lambda: said(started()),
    "WorkersSilent": lambda: late(nothing, 61, started()),
    "Training": lambda: said(World(1).to_running()),
    "StandingStill": lambda: late(nothing, 601, running(still_seconds=601.0)),
    "NoReports": lambda: late(nothing, 31, plain_program()),
    "TrainerWarning": lambda: late(nothing, 1, running(warnings=("the learning rate is 0 from step 9 on",))),
    "RoundClosed": unequal,
    "Recovering": recovering,
    "Terminating": deleted,
    "Suspending": suspends,
    "Suspended": suspends,
    "Resumed": suspends,
    "NodeLeaving": leaves,
    "Resizing": resizes,
    "ProgramChanged": edits_code,
    "AgentNotice": lambda: noticed("the program handles SIGUSR2 itself"),
    "RanksNotCommunicating": lambda: said(reported(World(2).to_running(), **RANKS)),
    "GpusNotUsed": lambda: said(reported(World(2, gpus_per_node=1).to_running(), device="cpu")),
    "Straggler": lambda: said(pace.reported(pace.gang(), SLOW)),
    "SlowerThanBaseline": slower,
    "ReplacingStraggler": lambda: said(pace.reported(pace.with_a_spare(), SLOW[:2])),
    "PodsReady": lambda: said(World(1).to_running()),
    "PodsNotReady": lambda: said(begun()),
    "Admitted": lambda: said(begun()),
    "NotTraining": lambda: said(begun()),
    "Healthy": lambda: said(World(1).to_running()),
    "NotReconciling": succeeded,
    "CheckpointSaved": succeeded,
    "NoCheckpointYet": lambda: said(begun()),
    "NoExport": succeeded,
    "ExportVerified": lambda: exported(True, True),
    "ExportNotVerified": lambda: exported(None),
    "ExportRefused": lambda: exported(True, False),
    "NotFinished": lambda: said(begun()),
    "NotFailed": succeeded,
    "NotStalled": succeeded,
    "Completed": succeeded,
    "PodLost": lambda: lost(lambda world, uid: world.vanish(uid)),
    "PodFailed": lambda: lost(lambda world, uid: world.end_pod(uid, 3, message="its side-car ended")),
    "NodeLost": lambda: lost(silent_node),
    "AgentRestarted": lambda: lost(new_agent),
    "GangDiffers": differs,
    "StartTimeout": lambda: late(nothing, 3600, started()),
    "PendingTimeout": lambda: late(nothing, 601, begun(health=Health(pending_timeout=Duration("10m")))),
    "DeadlineExceeded": lambda: late(nothing, 3601, World(1, active_deadline=Duration("1h")).to_running()),
    "NoProgress": lambda: budget(Reason.NO_PROGRESS, no_progress_limit=2),
    "MaxRestartsExceeded": lambda: budget(Reason.MAX_RESTARTS_EXCEEDED, max_restarts=1),
    "RepeatedFailure": lambda: budget(Reason.REPEATED_FAILURE),
    "RestartsDisabled": lambda: budget(Reason.RESTARTS_DISABLED, policy="Never"),
    "InvalidSpec": wrong_parameters,
    "UnreadableStatus": lambda: asyncio.run(_unreadable()),
    "ReconcileFailed": stalled_job,
}
EXPECTED = yaml.safe_load(MESSAGES.read_text()) if MESSAGES.is_file() else {}


@pytest.mark.parametrize("reason", [each for each in Reason if each != Reason.FOLDER_NOT_WRITABLE])
def test_the_message_of_a_reason_in_its_situation(reason):
    check(reason, SITUATIONS[reason]())


async def test_the_message_of_a_folder_that_cannot_be_written(tmp_path):
    check(Reason.FOLDER_NOT_WRITABLE, await _full_disk(tmp_path))


def check(reason: Reason, found: Said) -> None:
    assert reason in found, f"the situation produces {sorted(found)}"
    message = found[reason]
    assert reason.sentence in message
    assert len(message) <= MAX_MESSAGE
    assert not re.search(r" \(\)|\(, |, ,|; ;|None|: \)| \)|\b1 (nodes|pods|ranks|rounds|steps|attempts)\b", message)
    if os.environ.get("TORCHYARD_WRITE_GOLDEN"):
        EXPECTED[str(reason)] = message
        ordered = {str(each): EXPECTED[each] for each in Reason if each in EXPECTED}
        MESSAGES.write_text(yaml.safe_dump(ordered, sort_keys=False, width=120, allow_unicode=True))
    assert message == EXPECTED[reason]
