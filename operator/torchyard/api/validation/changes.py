"""What may change in a job that exists: one table, judged in Python and, as transition rules, by the API server.

What is trained never changes: that is another job. How it runs changes only while the job is suspended, because a round
has one size and one environment. The size of an elastic gang, time-outs, budgets and `suspend` itself may change at any
time. So may the program of a job whose code travels with it: the next round runs it, in the same pods if they can.
"""

from msgspec import Struct

from torchyard.api.resource import TrainingJob, resolved, value_at
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_code import is_sent

WHAT = "it cannot be changed once the job exists"
WHAT_UNSUSPENDED = "it can be changed only while the job is suspended"
FIX = "start a new job under another name"
FIX_UNSUSPENDED = "set spec.suspend to true first, change it, then set suspend to false"


class Fixed(Struct, frozen=True):
    """A field, relative to `spec`, that cannot change.

    `unless_suspended`: it can while the stored spec is suspended. `unless_elastic`: it can if the gang is elastic.
    `unless_code`: it can if code travels with the job, before and after; a new round then follows.
    """

    field: str
    unless_suspended: bool
    in_cel: bool = True
    unless_elastic: bool = False
    unless_code: bool = False

    @property
    def what(self) -> str:
        """What is wrong with a change."""
        return WHAT_UNSUSPENDED if self.unless_suspended else WHAT

    @property
    def fix(self) -> str:
        """What to do instead."""
        return FIX_UNSUSPENDED if self.unless_suspended else FIX


_OF_A_ROUND = ("args", "env", "code.digest", "code.parts", "code.commit")
FIXED: tuple[Fixed, ...] = (
    Fixed("trainer.name", unless_suspended=False),
    Fixed("trainer.mode", unless_suspended=False),
    Fixed("command", unless_suspended=False, unless_code=True),
    Fixed("script", unless_suspended=False),
    Fixed("managedBy", unless_suspended=False),
    # CEL sees no fields below one that keeps unknown fields; the trainer's own fingerprint check stands behind this.
    Fixed("trainer.params", unless_suspended=True, in_cel=False),
    Fixed("nodes", unless_suspended=True, unless_elastic=True),
    *(Fixed(field, unless_suspended=True, unless_code=True) for field in _OF_A_ROUND),
    *(
        Fixed(field, unless_suspended=True)
        for field in (
            "profile",
            "image",
            "envFrom",
            "workingDir",
            "code.git",
            "code.image",
            "code.claim",
            "elastic",
            "spares",
            "gpusPerNode",
            "procsPerNode",
            "launcher",
            "preload",
            "device",
            "gpu",
            "resources",
            "parallelism",
            "checkpoint.volume",
            "checkpoint.interval",
            "checkpoint.keepLast",
            "checkpoint.onPreempt",
            "checkpoint.resumeFrom",
            "checkpoint.initFrom",
            "evaluation",
            "export",
            "preflight",
            "health.nonFinite",
            "health.spikes",
            "health.stall",
            "health.straggler",
            "metrics.patterns",
            "metrics.totalSteps",
            "metrics.milestones",
            "logging",
            "scheduling.gang",
            "scheduling.queue",
            "scheduling.workloadPriorityClass",
            "scheduling.priorityClass",
            "scheduling.nodeSelector",
            "scheduling.tolerations",
            "scheduling.topology",
            "podLabels",
            "podAnnotations",
            "serviceAccountName",
            "imagePullSecrets",
            "volumes",
            "inputs",
            "inputCache",
        )
    ),
)
# The number of pods and their queue do not change what each of them runs: a gang grows and shrinks by pods.
NOT_OF_A_POD = frozenset(
    {"profile", "nodes", "managedBy", "elastic", "spares", "scheduling.queue", "scheduling.workloadPriorityClass"}
)
# What a round runs, and may change with the next one if code travels with the job.
OF_A_ROUND = tuple(fixed.field for fixed in FIXED if fixed.unless_code)
# May change at any time; every other field of this version is fixed.
FREE = (
    "code.path",
    "code.branch",
    "code.diff",
    "restart",
    "health.startTimeout",
    "health.pendingTimeout",
    "health.replaceStraggler",
    "debug",
    "scheduling.gangTimeout",
    "suspend",
    "activeDeadline",
    "ttlAfterFinished",
    "gracePeriod",
    "metrics.interval",
)


def forbidden_changes(old: TrainingJobSpec, new: TrainingJobSpec, *, with_next_round: bool = True) -> tuple[Fixed, ...]:
    """Return the fixed fields in which `new` differs from the stored `old`.

    Args:
        old: as it is stored.
        new: what it is to become.
        with_next_round: whether code that travels, and its program, may change.
    """
    before, after = resolved(old), resolved(new)
    elastic = old.elastic is not None and new.elastic is not None
    travels = with_next_round and code_travels(old) and code_travels(new)
    judged = [
        fixed
        for fixed in FIXED
        if not (fixed.unless_suspended and old.suspend)
        and not (fixed.unless_elastic and elastic)
        and not (fixed.unless_code and travels)
    ]
    return tuple(fixed for fixed in judged if value_at(before, fixed.field) != value_at(after, fixed.field))


def code_travels(spec: TrainingJobSpec) -> bool:
    """Return whether code is sent with a job, named by its digest."""
    return spec.code is not None and spec.code.digest is not None and is_sent(spec.code)


def can_go_on_from(before: TrainingJob, job: TrainingJob) -> bool:
    """Return whether `job`, as another run, may resume from `before`; its trainer checks the parameters."""
    old, new = before.spec.trainer, job.spec.trainer
    alike = old is not None and new is not None and old.name == new.name and new.mode == "train"
    return alike and before.status.checkpoint is not None
