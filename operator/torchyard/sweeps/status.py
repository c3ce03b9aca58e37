"""The status of a TrainingSweep. It is for people and for `kubectl wait`: decisions read the trials, never this."""

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import field

from torchyard.api.status import StatusModel
from torchyard.api.values import Time, doc

SweepState = Literal["", "Running", "Suspending", "Suspended", "Succeeded", "Failed"]
CONDITION_TYPES = ("Ready", "Reconciling", "Stalled", "Complete", "Failed")
MAX_MESSAGE = 1024


class SweepReason(StrEnum):
    """Why a sweep is in its state, or what it waits for."""

    SEARCHING = "Searching"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    PREDECESSOR_STOPPING = "PredecessorStopping"
    COMPLETED = "Completed"
    TARGET_REACHED = "TargetReached"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    TOO_MANY_FAILED = "TooManyFailed"
    NO_TRIAL_COMPLETE = "NoTrialComplete"
    # Of `Stalled`: a person has to act.
    INVALID_SPEC = "InvalidSpec"
    SPEC_CHANGED = "SpecChanged"
    DAMAGED_TRIAL = "DamagedTrial"
    NAME_CONFLICT = "NameConflict"
    TRIAL_REJECTED = "TrialRejected"
    SAMPLER_MISSING = "SamplerMissing"
    SAMPLER_FAILED = "SamplerFailed"


class TrialCounts(StatusModel, frozen=True, kw_only=True, omit_defaults=False):
    """Number of trials by outcome."""

    wanted: Annotated[int, doc("Largest number of trials.")] = 0
    created: Annotated[int, doc("Trials that exist.")] = 0
    running: Annotated[int, doc("Trials that train or wait for their pods.")] = 0
    complete: Annotated[int, doc("Trials that trained to their end and have a value.")] = 0
    stopped: Annotated[int, doc("Trials that were stopped early.")] = 0
    failed: Annotated[int, doc("Trials that failed, or ended without a finite value of the metric (NotFinite).")] = 0


class Best(StatusModel, frozen=True, kw_only=True):
    """The best trial of those that trained to their end."""

    trial: Annotated[str, doc("Name of its TrainingJob.")]
    value: Annotated[float, doc("Value of the objective.")]
    parameters: Annotated[dict[str, str], doc("Its parameters by path; values as JSON.")] = field(default_factory=dict)


class SweepColumns(StatusModel, frozen=True, kw_only=True):
    """Figures as `kubectl get` shows them."""

    trials: Annotated[str, doc("Trials that have ended, and their total number.")] = ""
    best: Annotated[str, doc("Value of the best trial, to four digits.")] = ""


class SweepCondition(StatusModel, frozen=True, kw_only=True, omit_defaults=False):
    """One aspect of the sweep, as the Kubernetes API conventions define conditions."""

    type: Annotated[str, doc("Type of the condition.")]
    status: Annotated[Literal["True", "False", "Unknown"], doc("Status of the condition.")]
    reason: Annotated[str, doc("CamelCase reason code.")]
    message: Annotated[str, doc("One sentence.")] = ""
    last_transition_time: Annotated[Time | None, doc("When status last changed.")] = None
    observed_generation: Annotated[int, doc("Generation of the spec that the condition describes.")] = 0


class TrainingSweepStatus(StatusModel, frozen=True, kw_only=True):
    """What the sweep has found so far, and what it does."""

    observed_generation: Annotated[int, doc("Generation of the spec this status describes.")] = 0
    state: Annotated[SweepState, doc("State of the sweep; empty only until the operator has seen it.")] = ""
    reason: Annotated[str, doc("Why the sweep is in this state: one CamelCase word.")] = ""
    message: Annotated[str, doc("One sentence: cause, evidence, next step.")] = ""
    conditions: Annotated[list[SweepCondition], doc("Ready, Reconciling, Stalled, Complete, Failed.")] = field(
        default_factory=list
    )
    trials: Annotated[TrialCounts, doc("Number of trials by outcome.")] = field(default_factory=TrialCounts)
    best: Annotated[Best | None, doc("The best trial so far.")] = None
    columns: Annotated[SweepColumns, doc("Figures as `kubectl get` shows them.")] = field(default_factory=SweepColumns)
    trial_keys: Annotated[list[str], doc("Public keys by which operators sign the trials that they create.")] = field(
        default_factory=list
    )
    completion_time: Annotated[Time | None, doc("When the sweep became Succeeded or Failed.")] = None
    last_update_time: Annotated[Time | None, doc("When this status was last written.")] = None
