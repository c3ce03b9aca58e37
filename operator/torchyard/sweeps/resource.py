"""The TrainingSweep object, and what its trials carry: all that is known of a sweep is in these objects."""

from typing import Any

from msgspec import Struct, field

from torchyard.api.names import MAX_JOB_NAME
from torchyard.api.resource import API_VERSION, ObjectMeta
from torchyard.api.status import NonFinite
from torchyard.api.values import since
from torchyard.sweeps.spec import MAX_TRIALS, TrainingSweepSpec
from torchyard.sweeps.status import TrainingSweepStatus

KIND = "TrainingSweep"
PLURAL = "trainingsweeps"
MAX_SWEEP_NAME = MAX_JOB_NAME - 1 - len(str(MAX_TRIALS - 1))
"""`<sweep>-<number>` must be the name of a job."""


MAX_REJECTED = 1000


class Unit(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """One decision to train: a new trial, or a stopped one that goes on."""

    number: int
    basis: int = 0
    """The decision used the outcomes of the units below this number, and nothing else."""
    thresholds: dict[str, float] = field(default_factory=dict)
    """By percent of the steps: the trial is stopped where its value is worse."""


class TrialRecord(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """What a sweep stores on a trial, in an annotation: at most 20 KiB."""

    number: int
    parameters: dict[str, Any]
    units: list[Unit]
    values: dict[str, float | NonFinite] = field(default_factory=dict)
    """Values of the objective by percent of the steps, as they were when the trial was stopped."""
    spec: str = ""
    """Digest of the part of the sweep's spec that may not change (`trials.fingerprint`); empty: it was compared."""
    seal: str = ""
    """Digest of the spec of its job when it was first suspended (`trials.seal`); empty: it was not yet."""
    rejected: str = ""
    """Why these parameters make no job, at most `MAX_REJECTED` characters; the job then has no program."""


class TrainingSweep(Struct, frozen=True, rename="camel", kw_only=True):
    """One sweep."""

    metadata: ObjectMeta
    spec: TrainingSweepSpec
    status: TrainingSweepStatus = field(default_factory=TrainingSweepStatus)
    api_version: str = API_VERSION
    kind: str = KIND

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name): the key of the work queue."""
        return (self.metadata.namespace, self.metadata.name)

    @property
    def expiry(self) -> float | None:
        """Deadline in unix seconds; None if it has none or is not created yet."""
        created = since(self.metadata.creation_timestamp, 0.0)
        return created + self.spec.deadline if self.spec.deadline is not None and created else None


def trial_name(sweep: str, number: int) -> str:
    """Name of the TrainingJob of a trial."""
    return f"{sweep}-{number}"


def trial_number(sweep: str, job: str) -> int | None:
    """Return the number of the trial that a job of this name would be; None: it is not a name of a trial."""
    digits = job.removeprefix(f"{sweep}-")
    number = int(digits) if digits.isdecimal() and len(digits) <= len(str(MAX_TRIALS)) else MAX_TRIALS
    return number if number < MAX_TRIALS and job == trial_name(sweep, number) else None
