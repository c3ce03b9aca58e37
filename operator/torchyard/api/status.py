"""The status of a TrainingJob: always there, never stale, bounded; the states and phases, and what follows from each.

Times are numbers here, and RFC 3339 strings in UTC with seconds in the object (`2026-11-21T06:30:00Z`); figures are
plain numbers with their unit in the description. States and phases are strings of the API. Programs may report phases
of their own: `Phase.of` returns None for them.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from torchyard.api import values
from torchyard.api.reasons import NO_REASON, Reason, say
from torchyard.api.spec_profile import PinnedProfile
from torchyard.api.values import TableEnum, Time, doc


class _State(Struct, frozen=True, kw_only=True):
    value: str
    activity: str = ""
    terminal: bool = False
    active: bool = False
    ready: bool = False
    at_rest: bool = False


class State(TableEnum):
    """Where a job is in its life.

    Attributes:
        terminal: final: the job keeps this state.
        active: the job wants pods.
        ready: kstatus reads the job as current (condition `Ready`) unless it is stalled.
        at_rest: the job has no pods and changes only if a user asks for it.
        activity: entry of `status.goodput` that time in this state counts as; empty: the phase decides.
    """

    terminal: bool
    active: bool
    ready: bool
    at_rest: bool
    activity: str

    NEW = _State(value="", activity="schedule", active=True)  # before the first plan
    PENDING = _State(value="Pending", activity="schedule", active=True)
    QUEUED = _State(value="Queued", activity="queue", active=True)  # a gang scheduler does not let its pods exist yet
    STARTING = _State(value="Starting", activity="start", active=True)
    RUNNING = _State(value="Running", active=True, ready=True)
    RECOVERING = _State(value="Recovering", activity="recover", active=True)
    SUSPENDING = _State(value="Suspending", activity="save")
    SUSPENDED = _State(value="Suspended", activity="queue", ready=True, at_rest=True)  # it counts as queued
    SUCCEEDED = _State(value="Succeeded", terminal=True, ready=True, at_rest=True)
    FAILED = _State(value="Failed", terminal=True, at_rest=True)
    TERMINATING = _State(value="Terminating")


class _Phase(Struct, frozen=True, kw_only=True):
    value: str
    activity: str = "productive"
    before_steps: bool = False
    after_step: bool = False


class Phase(TableEnum):
    """What rank 0 is doing.

    Attributes:
        before_steps: no step of this round has been made yet.
        after_step: a step has been made, in this round or before it.
        activity: entry of `status.goodput` that time in this phase counts as while the job runs.
    """

    before_steps: bool
    after_step: bool
    activity: str

    INIT = _Phase(value="init", activity="start", before_steps=True)
    COMPILE = _Phase(value="compile", activity="start", before_steps=True)
    RESTORE = _Phase(value="restore", activity="restore", before_steps=True)
    ROLLOUT = _Phase(value="rollout")
    STEP = _Phase(value="step")
    EVAL = _Phase(value="eval", after_step=True)
    SAVE = _Phase(value="save", activity="save", after_step=True)
    EXPORT = _Phase(value="export", activity="save", after_step=True)
    DRAIN = _Phase(value="drain", activity="save", after_step=True)

    @classmethod
    def of(cls, text: str) -> "Phase | None":
        """Return the phase with this name; None: it is a phase of the program's own."""
        found = cls._value2member_map_.get(text)
        return found if isinstance(found, Phase) else None


CONDITION_TYPES = (
    "Ready",
    "Reconciling",
    "Admitted",
    "PodsReady",
    "Running",
    "Progressing",
    "Recovering",
    "CheckpointReady",
    "ExportVerified",
    "Stalled",
    "Complete",
    "Failed",
)
MAX_ATTEMPTS = 10
MAX_METRICS = 64
MAX_CURVES = 8
MAX_WARNINGS = 8
MAX_WARNING = 300
MAX_STATUS_BYTES = 64 * 1024


class StatusModel(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """Base of every status section: frozen; unknown fields of a newer version are ignored."""


class Condition(StatusModel, frozen=True, kw_only=True, omit_defaults=False):
    """One aspect of the job, as the Kubernetes API conventions define conditions."""

    type: Annotated[str, doc("Type of the condition.")]
    status: Annotated[Literal["True", "False", "Unknown"], doc("Status of the condition.")]
    reason: Annotated[Reason, doc("CamelCase reason code.")]
    message: Annotated[str, doc("One sentence.")] = ""
    last_transition_time: Annotated[Time | None, doc("When status last changed.")] = None
    observed_generation: Annotated[int, doc("Generation of the spec that the condition describes.")] = 0


class Nodes(StatusModel, frozen=True, kw_only=True, omit_defaults=False):
    """Pods of the gang."""

    desired: Annotated[int, doc("Number of pods in the spec.")] = 0
    ready: Annotated[int, doc("Pods whose agent is connected and ready or running.")] = 0
    lost: Annotated[int, doc("Pods lost since the job started.")] = 0


class Restarts(StatusModel, frozen=True, kw_only=True, omit_defaults=False):
    """How often the job began again after a failure, and what that cost."""

    total: Annotated[int, doc("Rounds that were opened because the one before failed.")] = 0
    counted: Annotated[int, doc("Failures charged to the restart budget, also the one that ended the job.")] = 0
    no_progress: Annotated[
        int, doc("Rounds in a row that did not advance the newest checkpoint or, without one, the step.")
    ] = 0
    best_step: Annotated[
        int, doc("Highest step of all rounds that ended early; without a checkpoint only steps beyond it are progress.")
    ] = 0


class Progress(StatusModel, frozen=True, kw_only=True):
    """Progress of training."""

    step: Annotated[int, doc("Newest optimizer step reported.")] = 0
    total_steps: Annotated[int | None, doc("Steps of the whole run, if known.")] = None
    epoch: Annotated[float | None, doc("Passes over the data.")] = None
    percent: Annotated[float | None, doc("Share done, 0 to 100.")] = None
    eta_seconds: Annotated[int | None, doc("Seconds left at the current rate.")] = None
    last_step_time: Annotated[Time | None, doc("When the newest step was reported.")] = None
    phase: Annotated[
        str, doc("What rank 0 is doing: init, compile, restore, rollout, step, eval, save, export, drain.")
    ] = ""
    stalled: Annotated[
        bool | None,
        doc("Whether rank 0 has made no step for unusually long; absent: nothing was reported in the newest round."),
    ] = None


class Throughput(StatusModel, frozen=True, kw_only=True):
    """How fast training is, over all ranks."""

    steps_per_second: Annotated[float | None, doc("Optimizer steps a second.")] = None
    samples_per_second: Annotated[float | None, doc("Samples a second.")] = None
    tokens_per_second: Annotated[float | None, doc("Tokens a second.")] = None
    mfu: Annotated[float | None, doc("Model FLOP utilisation, 0 to 1; absent on unknown devices.")] = None


class Gpus(StatusModel, frozen=True, kw_only=True):
    """GPUs of the gang; figures are means unless named."""

    count: Annotated[int, doc("GPUs seen by the agents.")] = 0
    utilization: Annotated[float | None, doc("Percent of time a kernel ran.")] = None
    memory_used_bytes: Annotated[int | None, doc("Used memory, all GPUs together.")] = None
    memory_total_bytes: Annotated[int | None, doc("Memory, all GPUs together.")] = None
    temperature_c: Annotated[float | None, doc("Hottest GPU, degrees Celsius.")] = None
    power_w: Annotated[float | None, doc("Power of all GPUs, watts.")] = None


class CheckpointStatus(StatusModel, frozen=True, kw_only=True):
    """The newest complete checkpoint."""

    step: Annotated[int, doc("Optimizer step it holds.")] = 0
    time: Annotated[Time | None, doc("When it was complete.")] = None
    path: Annotated[str, doc("Folder.")] = ""
    bytes: Annotated[int | None, doc("Size.")] = None
    save_seconds: Annotated[float | None, doc("How long the save took.")] = None
    steps_at_risk: Annotated[int | None, doc("Steps that a failure now would lose.")] = None


class Cause(StatusModel, frozen=True, kw_only=True):
    """The first cause of a round's end."""

    rank: Annotated[int | None, doc("Global rank.")] = None
    pod: Annotated[str, doc("Pod name.")] = ""
    node: Annotated[str, doc("Node name.")] = ""
    exit_code: Annotated[int | None, doc("Exit code, or 128 + signal.")] = None
    class_: Annotated[Reason, doc("Reason code of the failure.")] = field(default=NO_REASON, name="class")
    exception: Annotated[str, doc("Exception type and message.")] = ""
    lines: Annotated[list[str], doc("Last lines of the failing rank.")] = field(default_factory=list)
    events: Annotated[list[str], doc("Last events of its pod, if that was lost or has ended.")] = field(
        default_factory=list
    )


class Attempt(StatusModel, frozen=True, kw_only=True):
    """One round: why it ended and what it cost."""

    round: Annotated[
        int, doc("Round number; of a pod that ended or did not start between rounds, the round that waited for it.")
    ]
    start_time: Annotated[Time | None, doc("When it opened.")] = None
    end_time: Annotated[Time | None, doc("When it closed; absent while open.")] = None
    reason: Annotated[Reason, doc("Why it ended, a reason code.")] = NO_REASON
    cause: Annotated[Cause | None, doc("First cause.")] = None
    answer: Annotated[str, doc("How a program that reports no saves answered when it was asked to save and stop.")] = ""
    counted: Annotated[bool, doc("Charged to the restart budget.")] = False
    start_step: Annotated[int, doc("Step the round resumed from.")] = 0
    end_step: Annotated[int, doc("Newest step it reported.")] = 0
    steps_gained: Annotated[int, doc("Steps made durable by a checkpoint, or reported when there is none.")] = 0
    seconds_lost: Annotated[float, doc("Seconds from the failure to the next round's first step.")] = 0.0
    code: Annotated[str, doc("First 12 digits of the digest of the code that it ran; absent: that of its image.")] = ""


NonFinite = Literal["NaN", "Infinity", "-Infinity"]


class NonFiniteMetric(StatusModel, frozen=True, kw_only=True, omit_defaults=False):
    """A metric whose newest value is not a finite number."""

    value: Annotated[NonFinite, doc("Newest value.")]
    step: Annotated[int, doc("Step since which it has not been finite.")]


class Curve(StatusModel, frozen=True, kw_only=True, omit_defaults=False):
    """The curve of one metric in at most 64 buckets."""

    width: Annotated[int, doc("Steps of a bucket.")] = 1
    data: Annotated[str, doc("The buckets; docs/protocol.md describes them. `torchyard curves` draws them.")] = ""


class Artifact(StatusModel, frozen=True, kw_only=True):
    """Something the job made."""

    name: Annotated[str, doc("Name.")]
    uri: Annotated[str, doc("Where it is.")] = ""
    sha256: Annotated[str, doc("Digest.")] = ""
    bytes: Annotated[int | None, doc("Size.")] = None
    verified: Annotated[
        bool | None,
        doc(
            "Of an export: whether it was read back and computes what the model computes; false: it was not published."
        ),
    ] = None


class InputStatus(StatusModel, frozen=True, kw_only=True):
    """One input of the job, of the pod that has the least of it."""

    name: Annotated[str, doc("Name.")]
    request: Annotated[str, doc("Digest of the entry of the spec that this is about.")] = ""
    state: Annotated[str, doc("waiting, fetching or ready.")] = ""
    revision: Annotated[
        str,
        doc(
            "What was fetched, and stays the same for all later pods: a commit, a SHA-256, or a digest of the names, "
            "sizes and tags of the objects of a bucket."
        ),
    ] = ""
    bytes: Annotated[int | None, doc("Bytes that are there.")] = None
    total_bytes: Annotated[int | None, doc("Bytes of all its files, if known.")] = None
    files: Annotated[int | None, doc("Number of its files.")] = None


class AvoidedNode(StatusModel, frozen=True, kw_only=True):
    """A node that new pods avoid where others have capacity."""

    node: Annotated[str, doc("Name of the node.")]
    reason: Annotated[Reason, doc("Newest failure that speaks against it, a reason code.")] = NO_REASON
    failures: Annotated[int, doc("Failures that are remembered, of all jobs.")] = 0
    time: Annotated[Time | None, doc("When the newest one happened.")] = None


class ImagePull(StatusModel, frozen=True, kw_only=True, omit_defaults=False):
    """The slowest pull of an image for the newest pods."""

    image: Annotated[str, doc("The image.")]
    seconds: Annotated[float, doc("Seconds until its container started, with its creation.")] = 0.0


class Images(StatusModel, frozen=True, kw_only=True):
    """Images of the pods of a gang."""

    trainer: Annotated[str, doc("Image of the trainer's container.")] = ""
    agent: Annotated[str, doc("Image that the agent is installed from.")] = ""


class Rendezvous(StatusModel, frozen=True, kw_only=True):
    """The newest round as it was persisted before it was sent to any agent: where a restarted operator continues."""

    open: Annotated[bool, doc("Whether the round is open.")] = False
    master_address: Annotated[str, doc("Address of node rank 0.")] = ""
    master_port: Annotated[int, doc("Port of node rank 0.")] = 0
    members: Annotated[list[str], doc("Pod uids in rank order.")] = field(default_factory=list)
    next_round_time: Annotated[Time | None, doc("Back-off: no round opens before this time.")] = None
    micro_batch: Annotated[
        int | None,
        doc("Largest micro-batch of the next rounds, learned when a GPU ran out of memory; absent: as the spec says."),
    ] = None
    oldest_incarnation: Annotated[
        int, doc("Pods of earlier incarnations take part in no round any more: what they run differed.")
    ] = 0
    releases: Annotated[
        int, doc("How often in a row the gang was released because only a part of it could be scheduled.")
    ] = 0
    released: Annotated[bool, doc("Whether the gang was released; it is created again after nextRoundTime.")] = False
    silent: Annotated[bool, doc("Whether the agents of running pods are known not to reach the operator.")] = False
    delayed: Annotated[
        bool, doc("Whether something other than the last failure delays the next round of a recovering job.")
    ] = False
    waiting_since: Annotated[Time | None, doc("Since when a gang that was released waits for capacity.")] = None
    program: Annotated[
        str, doc("Digest of the code that travels, command, args and env of the newest round; empty: no code travels.")
    ] = ""
    waited_for: Annotated[
        Reason, doc("What the pods waited for when `spec.health.pendingTimeout` ended the job; empty: not known.")
    ] = NO_REASON


class GangStatus(StatusModel, frozen=True, kw_only=True):
    """Which scheduler places all pods of the gang or none, and its message."""

    enforced_by: Annotated[
        str, doc("native, kueue, volcano, coscheduling, kai; torchyard: the operator alone; none: nothing.")
    ]
    admitted: Annotated[bool, doc("Whether the gang has what it asked for: its quota, or a node for every pod.")] = (
        False
    )
    message: Annotated[str, doc("One sentence: who holds the gang back, or how it is placed.")] = ""
    position: Annotated[
        int | None,
        doc("Place in the queue, 1 is the next, if the queue tells; beyond 99 rounded up to two digits."),
    ] = None
    uncounted: Annotated[int, doc("Workloads ahead in the queue that are not TrainingJobs.")] = 0
    expected_start_time: Annotated[
        Time | None,
        doc("Estimate of when the job starts, if running jobs end as they forecast and no others were ahead."),
    ] = None


class Columns(StatusModel, frozen=True, kw_only=True):
    """Figures as `kubectl get` shows them, with their units; everything else reads the figures themselves."""

    progress: Annotated[str, doc("Share done.")] = ""
    step: Annotated[str, doc("Newest optimizer step, of how many.")] = ""
    loss: Annotated[str, doc("Newest loss, to four digits.")] = ""
    reward: Annotated[str, doc("Newest mean reward, to four digits, of a job of reinforcement learning.")] = ""
    rate: Annotated[str, doc("Optimizer steps a second.")] = ""
    goodput: Annotated[str, doc("Share of wall time that made steps which survived.")] = ""
    eta: Annotated[str, doc("Time left at the current rate, while the job runs.")] = ""
    result: Annotated[str, doc("What a built-in workload is trained for, as it last evaluated it.")] = ""
    avoids: Annotated[str, doc("Nodes that the newest pods avoid.")] = ""


class Goodput(StatusModel, frozen=True, kw_only=True):
    """All wall time since creation, attributed."""

    percent: Annotated[float, doc("Share of wall time that made steps which survived.")] = 0.0
    seconds: Annotated[
        dict[str, float],
        doc(
            "productive, queue, schedule, pull, code, inputs, requirements, start, restore, save, stalled, lost, "
            "recover: seconds each."
        ),
    ] = field(default_factory=dict)


class Batch(StatusModel, frozen=True, kw_only=True):
    """How the samples of an optimizer step are divided."""

    per_process: Annotated[int, doc("Samples of a step that one process has; the most, where they differ.")] = 0
    whole: Annotated[int, doc("Samples of a step over all processes.")] = field(default=0, name="global")
    accumulation: Annotated[
        int, doc("Passes in which a process takes its samples; 0: as many as its tokens need (`microBatchTokens`).")
    ] = 0


class CodeStatus(StatusModel, frozen=True, kw_only=True):
    """The code of the newest round."""

    digest: Annotated[str, doc("SHA-256 of its files.")] = ""
    commit: Annotated[str, doc("Commit of its folder.")] = ""
    branch: Annotated[str, doc("Branch of its folder.")] = ""
    changed: Annotated[bool, doc("Whether it has changes that were not committed: spec.code.diff.")] = False
    source: Annotated[str, doc("Repository, image or claim that it comes from; empty: it was sent with the job.")] = ""


class Straggler(StatusModel, frozen=True, kw_only=True):
    """A rank whose steps take much longer than those of the others, without the time that it waits for them."""

    rank: Annotated[int, doc("Global rank.")] = 0
    pod: Annotated[str, doc("Its pod.")] = ""
    node: Annotated[str, doc("Node of the pod.")] = ""
    device: Annotated[str, doc("Device that the rank trains on.")] = ""
    ratio: Annotated[float, doc("How many times the median of the other ranks its steps take.")] = 0.0
    usual_seconds: Annotated[float, doc("Median compute time of a step of the other ranks.")] = 0.0
    steps: Annotated[int, doc("Steps that were compared.")] = 0


class Pace(StatusModel, frozen=True, kw_only=True):
    """How long the steps of the gang take, over the last half minute."""

    ranks: Annotated[int, doc("Ranks that were measured.")] = 0
    step_seconds: Annotated[float | None, doc("Median time of a step.")] = None
    compute_seconds: Annotated[
        float | None,
        doc(
            "Median over the ranks of the part of a step that a rank does not wait for others; absent: these waits "
            "cannot be measured, and slow ranks cannot be distinguished from those that wait for them."
        ),
    ] = None
    usual_step_seconds: Annotated[float | None, doc("Shortest stepSeconds of this job with as many ranks.")] = None
    slower: Annotated[float | None, doc("How many times usualStepSeconds a step takes, if that is much and lasts.")] = (
        None
    )
    slower_since: Annotated[Time | None, doc("Since when steps take much longer than usual.")] = None
    stragglers: Annotated[list[Straggler], doc("Slow ranks, at most 8.")] = field(default_factory=list)


class KeptPod(StatusModel, frozen=True, kw_only=True):
    """A failed pod that stays for people to look at, with its logs and without GPUs: spec.debug.keepFailedPod."""

    name: Annotated[str, doc("Name of the pod.")]
    round: Annotated[int, doc("Round that failed in it.")] = 0
    until: Annotated[Time | None, doc("When it is deleted.")] = None


class TrainingJobStatus(StatusModel, frozen=True, kw_only=True):
    """What the job is doing, why, and how well."""

    observed_generation: Annotated[int, doc("Generation of the spec this status describes.")] = 0
    state: Annotated[State, doc("State of the job; empty only until the operator has seen it.")] = State.NEW
    reason: Annotated[Reason, doc("Why the job is in this state: one CamelCase reason code.")] = NO_REASON
    message: Annotated[str, doc("One sentence: dominant cause, evidence, next step.")] = ""
    conditions: Annotated[list[Condition], doc("Conditions; all are set from the start.")] = field(default_factory=list)
    nodes: Annotated[Nodes, doc("Pods of the gang.")] = field(default_factory=Nodes)
    round: Annotated[int, doc("Newest round; 0 before the first.")] = 0
    incarnation: Annotated[int, doc("Number that increases when pods are replaced; part of the names of pods.")] = 0
    images: Annotated[
        Images | None, doc("Images of the pods, chosen with the first gang and after each suspension.")
    ] = None
    image_pull: Annotated[
        ImagePull | None, doc("The slowest pull of an image for the newest pods; absent: their nodes had all images.")
    ] = None
    profile: Annotated[
        PinnedProfile | None, doc("The profile of the job and what it sets; later edits of it do not touch the job.")
    ] = None
    selector: Annotated[str, doc("Label selector of the pods of an elastic gang, for autoscalers.")] = ""
    gang: Annotated[GangStatus | None, doc("The scheduler of the gang; absent before the first plan.")] = None
    rendezvous: Annotated[Rendezvous, doc("The newest round's members.")] = field(default_factory=Rendezvous)
    restarts: Annotated[Restarts, doc("Restarts so far.")] = field(default_factory=Restarts)
    progress: Annotated[Progress, doc("Progress of training.")] = field(default_factory=Progress)
    metrics: Annotated[
        dict[str, float],
        doc("Metrics whose newest value is a finite number: at most 64 with those of nonFiniteMetrics."),
    ] = field(default_factory=dict)
    non_finite_metrics: Annotated[
        dict[str, NonFiniteMetric],
        doc("Metrics whose newest value is NaN or infinite, which are not in metrics. A later finite value moves one."),
    ] = field(default_factory=dict)
    curves: Annotated[
        dict[str, Curve],
        doc(
            "Curves of the most important metrics, at most 8, of the values that a status was written with; "
            "`metrics.jsonl` in the checkpoint folder has every value."
        ),
    ] = field(default_factory=dict)
    throughput: Annotated[Throughput, doc("Throughput of training.")] = field(default_factory=Throughput)
    pace: Annotated[Pace | None, doc("How long steps take, and which ranks are slow.")] = None
    gpus: Annotated[Gpus, doc("GPUs of the gang.")] = field(default_factory=Gpus)
    checkpoint: Annotated[CheckpointStatus | None, doc("The newest complete checkpoint.")] = None
    devices: Annotated[
        dict[str, str],
        doc("Ranks of the newest round by the device that they train on, as ranges: cuda:0 NVIDIA H100: 0,8."),
    ] = field(default_factory=dict)
    batch: Annotated[Batch | None, doc("How built-in workloads divide the samples of a step.")] = None
    code: Annotated[CodeStatus | None, doc("The code of the newest round, if it travels with the job.")] = None
    inputs: Annotated[list[InputStatus], doc("The inputs that are fetched.")] = field(default_factory=list)
    environment: Annotated[
        str,
        doc("Digest of Python, packages and code of the newest round, as in environment.json of its checkpoints."),
    ] = ""
    warnings: Annotated[
        list[str], doc("Warnings about the newest round, at most 8; each is also an event of the job.")
    ] = field(default_factory=list)
    goodput: Annotated[Goodput | None, doc("Where the wall time went.")] = None
    columns: Annotated[Columns, doc("Figures as `kubectl get` shows them.")] = field(default_factory=Columns)
    attempts: Annotated[list[Attempt], doc("The last 10 rounds, opened or not.")] = field(default_factory=list)
    avoided_nodes: Annotated[
        list[AvoidedNode], doc("Nodes that the newest pods avoid where others have capacity, at most 16.")
    ] = field(default_factory=list)
    kept_pod: Annotated[KeptPod | None, doc("The failed pod that stays for people to look at.")] = None
    artifacts: Annotated[list[Artifact], doc("Files that the job has written.")] = field(default_factory=list)
    last_update_time: Annotated[Time | None, doc("When this status was last written.")] = None
    start_time: Annotated[Time | None, doc("When the first round opened.")] = None
    completion_time: Annotated[Time | None, doc("When the job became Succeeded or Failed.")] = None
    exit_code: Annotated[int | None, doc("Exit code of a failed job, which follows from the reason.")] = None
    gpu_seconds: Annotated[float, doc("GPU seconds held so far.")] = 0.0


def newest_values(status: TrainingJobStatus) -> dict[str, float]:
    """Return the newest value of each metric, those that are not finite among them."""
    return {**status.metrics, **{name: float(each.value) for name, each in status.non_finite_metrics.items()}}


def is_preempted(status: TrainingJobStatus) -> bool:
    """Return whether a gang scheduler took back what it gave: the job continues by itself once it is admitted again."""
    return status.reason is Reason.PREEMPTED and status.state in {State.SUSPENDING, State.SUSPENDED}


def with_reason(status: TrainingJobStatus, state: State, reason: Reason, evidence: str = "") -> TrainingJobStatus:
    """Return the status in another state, with a reason and its sentence."""
    return replace(status, state=state, reason=reason, message=say(reason, evidence))


SHORT = 120
COLUMNS_BYTES = 512  # the columns of `kubectl get` are added when the status is written


def bounded(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status within its limits: old attempts lose their log lines, then their messages, then figures go."""
    if len(status.attempts) > MAX_ATTEMPTS:
        status = replace(status, attempts=status.attempts[-MAX_ATTEMPTS:])
    if not _too_big(status):  # measured in every plan: once, not at each of the steps below
        return status
    index = 0
    while index < len(status.attempts) and _too_big(status):
        status = _with_attempt(status, index, _without_lines(status.attempts[index]))
        index += 1
    if _too_big(status):
        status = replace(status, attempts=[_short(each) for each in status.attempts], artifacts=status.artifacts[:10])
    status = replace(status, curves={}, avoided_nodes=[]) if _too_big(status) else status
    return replace(status, metrics={}, non_finite_metrics={}, devices={}) if _too_big(status) else status


def _too_big(status: TrainingJobStatus) -> bool:
    return len(msgspec.json.encode(status, enc_hook=values.encode)) > MAX_STATUS_BYTES - COLUMNS_BYTES


def _with_attempt(status: TrainingJobStatus, index: int, attempt: Attempt) -> TrainingJobStatus:
    return replace(status, attempts=[*status.attempts[:index], attempt, *status.attempts[index + 1 :]])


def _without_lines(attempt: Attempt) -> Attempt:
    return replace(attempt, cause=replace(attempt.cause, lines=[], events=[])) if attempt.cause is not None else attempt


def _short(attempt: Attempt) -> Attempt:
    if attempt.cause is None:
        return attempt
    return replace(
        attempt, cause=replace(attempt.cause, lines=[], events=[], exception=attempt.cause.exception[:SHORT])
    )
