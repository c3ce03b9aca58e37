"""What may change in a job that exists: one table, judged in Python and, as transition rules, by the API server.

What is trained never changes: that is another job. How it runs changes only while the job is suspended, because a round
has one size and one environment. The size of an elastic gang, time-outs, budgets and `suspend` itself may change at any
time.
"""

from msgspec import Struct

from torchyard.api.resource import TrainingJob, resolved, value_at
from torchyard.api.spec import TrainingJobSpec

WHAT = "it cannot be changed once the job exists"
WHAT_UNSUSPENDED = "it can be changed only while the job is suspended"
FIX = "start a new job under another name"
FIX_UNSUSPENDED = "set spec.suspend to true first, change it, then set suspend to false"


class Fixed(Struct, frozen=True):
    """A field, relative to `spec`, that cannot change.

    `unless_suspended`: it can while the stored spec is suspended. `unless_elastic`: it can if the gang is elastic.
    """

    field: str
    unless_suspended: bool
    in_cel: bool = True
    unless_elastic: bool = False

    @property
    def what(self) -> str:
        """What is wrong with a change."""
        return WHAT_UNSUSPENDED if self.unless_suspended else WHAT

    @property
    def fix(self) -> str:
        """What to do instead."""
        return FIX_UNSUSPENDED if self.unless_suspended else FIX


FIXED: tuple[Fixed, ...] = (
    Fixed("trainer.name", unless_suspended=False),
    Fixed("trainer.mode", unless_suspended=False),
    Fixed("command", unless_suspended=False),
    Fixed("script", unless_suspended=False),
    Fixed("managedBy", unless_suspended=False),
    # CEL sees no fields below one that keeps unknown fields; the trainer's own fingerprint check stands behind this.
    Fixed("trainer.params", unless_suspended=True, in_cel=False),
    Fixed("nodes", unless_suspended=True, unless_elastic=True),
    *(
        Fixed(field, unless_suspended=True)
        for field in (
            "args",
            "image",
            "env",
            "envFrom",
            "workingDir",
            "code.digest",
            "code.parts",
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
    {"nodes", "managedBy", "elastic", "spares", "scheduling.queue", "scheduling.workloadPriorityClass"}
)
# May change at any time; every other field of this version is fixed.
FREE = (
    "code.path",
    "code.commit",
    "code.branch",
    "code.diff",
    "restart",
    "health.startTimeout",
    "health.pendingTimeout",
    "health.replaceStraggler",
    "scheduling.gangTimeout",
    "suspend",
    "activeDeadline",
    "ttlAfterFinished",
    "gracePeriod",
    "metrics.interval",
)


def forbidden_changes(old: TrainingJobSpec, new: TrainingJobSpec) -> tuple[Fixed, ...]:
    """Return the fixed fields in which `new` differs from the stored `old`."""
    before, after = resolved(old), resolved(new)
    elastic = old.elastic is not None and new.elastic is not None
    judged = [
        fixed
        for fixed in FIXED
        if not (fixed.unless_suspended and old.suspend) and not (fixed.unless_elastic and elastic)
    ]
    return tuple(fixed for fixed in judged if value_at(before, fixed.field) != value_at(after, fixed.field))


def can_go_on_from(before: TrainingJob, job: TrainingJob) -> bool:
    """Return whether `job`, as another run, may resume from `before`; its trainer checks the parameters."""
    old, new = before.spec.trainer, job.spec.trainer
    alike = old is not None and new is not None and old.name == new.name and new.mode == "train"
    return alike and before.status.checkpoint is not None
