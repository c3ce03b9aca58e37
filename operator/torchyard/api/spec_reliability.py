"""How a run survives: checkpoints, restart budget, time-outs and guards."""

from typing import Annotated, Literal

from msgspec import Meta, field

from torchyard.api.values import CHECKPOINT_PATTERN, Duration, DurationOrAuto, Model, Quantity, Reference, doc


class CheckpointInterval(Model, frozen=True, kw_only=True):
    """How often a checkpoint is written; give one of the two."""

    steps: Annotated[Annotated[int, Meta(ge=1, le=1000000000)] | None, doc("Optimizer steps between checkpoints.")] = (
        None
    )
    seconds: Annotated[Annotated[int, Meta(ge=1, le=604800)] | None, doc("Seconds between checkpoints.")] = None


class CheckpointVolume(Model, frozen=True, kw_only=True):
    """Where checkpoints live; give one of the two."""

    claim: Annotated[Reference | None, doc("Name of a PersistentVolumeClaim that every pod of the job can mount.")] = (
        None
    )
    ephemeral: Annotated[
        Quantity | None, doc("Size of a volume that is deleted with its pod; if a pod is lost, so are the checkpoints.")
    ] = None


class Checkpoint(Model, frozen=True, kw_only=True):
    """Checkpoints: where, how often, how many."""

    volume: Annotated[CheckpointVolume | None, doc("Durable volume; local runs use the run's own folder.")] = None
    interval: Annotated[
        CheckpointInterval | None, doc("How often; absent: chosen from the measured cost of a save.")
    ] = None
    keep_last: Annotated[int, Meta(ge=1, le=1000, description="Number of newest checkpoints to keep.")] = 3
    keep_best: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Best checkpoints, by the workload's headline metric, that are kept as well; a model that was "
            "evaluated and is among them is saved at once.",
        ),
    ] = 0
    resume_from: Annotated[
        Annotated[str, Meta(pattern=CHECKPOINT_PATTERN, min_length=1, max_length=1024)] | None,
        doc(
            "Checkpoint to start from, or that eval and export look at: another job by name (on a cluster one with the "
            "same claim), or the path of a checkpoint folder. The newest one, unless /best or /step-00001200 follows."
        ),
    ] = None
    init_from: Annotated[
        Annotated[str, Meta(pattern=CHECKPOINT_PATTERN, min_length=1, max_length=1024)] | None,
        doc(
            "Weights to begin training with, without the steps, the optimizer or the identity of the run that made "
            "them: another job by name or the path of a checkpoint folder, as of resumeFrom, or the path of a folder "
            "with a Hugging Face model. Not read again once the job has a checkpoint."
        ),
    ] = None
    on_preempt: Annotated[bool, doc("Save before pods are stopped (suspend, preemption, Ctrl-C).")] = True


class Backoff(Model, frozen=True, kw_only=True):
    """Delay before the next round after a counted failure; it doubles up to `max`."""

    initial: Annotated[Duration, doc("First delay.")] = Duration.default("1s")
    max: Annotated[Duration, doc("Longest delay.")] = Duration.default("5m")


class Restart(Model, frozen=True, kw_only=True):
    """Restart budget, counted by progress: a round that advanced the checkpoint costs nothing."""

    policy: Annotated[Literal["OnFailure", "Never"], doc("Never: the first failure ends the job.")] = "OnFailure"
    max_restarts: Annotated[
        Annotated[int, Meta(ge=0, le=100000)] | None,
        doc("Most failures charged to the budget; 0: a failure of the program ends the job; absent: no limit."),
    ] = None
    no_progress_limit: Annotated[
        int, Meta(ge=1, le=1000, description="Number of rounds in a row without progress after which the job fails.")
    ] = 3
    backoff: Annotated[Backoff, doc("Delay between rounds after failures.")] = field(default_factory=Backoff)


class Health(Model, frozen=True, kw_only=True):
    """When a job counts as hung or broken."""

    stall: Annotated[
        DurationOrAuto,
        doc(
            "Longest time without progress, in any phase, once a round has made its first step. A worker that makes "
            "none for longer is ended, with its stacks in its log, and a new round begins. auto: twenty times what it "
            "took before, at least ten minutes, for built-in workloads; other programs are not ended but reported in "
            "the status (StandingStill), since it is not known what they do between two steps."
        ),
    ] = DurationOrAuto.default("auto")
    start_timeout: Annotated[
        Duration, doc("Longest time from the moment at which all pods run to the first step of a round.")
    ] = Duration.default("15m")
    pending_timeout: Annotated[
        Duration | None, doc("Longest time that pods may wait to be scheduled; absent: no limit.")
    ] = None
    non_finite: Annotated[
        Literal["fail", "skip", "rollback"],
        doc(
            "What a loss or gradient norm that is not finite does; its update is never made. fail: the job ends; skip: "
            "the step counts without an update, ten in a row end the job; rollback: back to the newest checkpoint, the "
            "same again ends the job."
        ),
    ] = "fail"
    spikes: Annotated[
        Literal["ignore", "warn", "rollback"],
        doc(
            "What a built-in trainer does about a loss or gradient norm that is far above those of the steps before. "
            "warn: the status says so; rollback: its update is not made, and the run repeats the steps since the "
            "newest checkpoint. A spike that comes again is left out, one that does not come again was the "
            "hardware. Values that are not finite are spikes, too, unless nonFinite is skip."
        ),
    ] = "warn"
    straggler: Annotated[
        bool,
        doc("Warn of ranks whose compute time stays far above the median, and of gangs that become slower."),
    ] = True
    replace_straggler: Annotated[
        bool, doc("Have a spare take the place of the pod of a slow rank, once for each rank; needs spares.")
    ] = False


class Debug(Model, frozen=True, kw_only=True):
    """What stays after a failure, for people to look at."""

    keep_failed_pod: Annotated[
        Duration | None,
        doc(
            "How long the pod in which the newest failure began stays once it has ended, with its logs; it holds no "
            "GPU then. Its newest reports, stacks and dumps are copied beside the checkpoints, to failures/, at most "
            "64 MiB: on a cluster they stay if checkpoint.volume names a claim. Absent: it is deleted at once."
        ),
    ] = None


class Preflight(Model, frozen=True, kw_only=True):
    """Checks before the first round."""

    enabled: Annotated[bool, doc("Check versions, GPUs, network and storage before the first round.")] = True
