"""The TrainingJob object, its documents (dicts of JSON values), and what `kubectl get` shows of it.

A printer column of the API server shows a field as it is, so the status holds texts for the columns beside the figures.

A status that an earlier version of the operator wrote gets the facts that were left to its reason: the planner never
reads `status.reason`, and an operator that takes over must not restart a job or recreate a released gang at once.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from torchyard.api import values
from torchyard.api.exit_codes import exit_code_of
from torchyard.api.reasons import Kind, Reason
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.status import Columns, State, TrainingJobStatus, newest_values
from torchyard.api.values import Time, figure, span

GROUP = "torchyard.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TrainingJob"
PLURAL = "trainingjobs"


class OwnerReference(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """An object that owns another one."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """The part of Kubernetes object metadata that TorchYard reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    finalizers: list[str] = field(default_factory=list)
    owner_references: list[OwnerReference] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, Any] = field(default_factory=dict)


class TrainingJob(Struct, frozen=True, rename="camel", kw_only=True):
    """One training job."""

    metadata: ObjectMeta
    spec: TrainingJobSpec
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)
    api_version: str = API_VERSION
    kind: str = KIND

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name), the key of the work queue."""
        return (self.metadata.namespace, self.metadata.name)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen by itself: it has ended, or is suspended as asked."""
        return self.status.state.terminal or (self.status.state is State.SUSPENDED and self.spec.suspend)


# The fields of a status that hold a time.
TIMES = frozenset(
    {
        *("time", "startTime", "endTime", "completionTime", "lastStepTime", "lastTransitionTime", "lastUpdateTime"),
        *("nextRoundTime", "waitingSince"),
    }
)
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1
"""What the API server stores."""
T = TypeVar("T")


def read_job(document: Mapping[str, Any]) -> TrainingJob:
    """Decode an object as the API server or a run folder holds it. Null and absent mean the same.

    Raises:
        ValueError: naming the field; files that people write go through `validate` instead, which names them all.
    """
    job = converted({key: value for key, value in document.items() if key != "status"}, TrainingJob)
    status = document.get("status")
    if status is None:
        return job
    try:
        return msgspec.structs.replace(job, status=read_status(status))
    except ValueError as error:
        text = str(error)
        raise ValueError(text.replace("`$", "`$.status", 1) if "`$" in text else f"{text} - at `$.status`") from error


def read_status(document: Mapping[str, Any]) -> TrainingJobStatus:
    """Decode a status; unknown fields of a newer version are ignored.

    Raises:
        ValueError: naming the field.
    """
    return upgraded(_read_status(document))


def status_document(status: TrainingJobStatus) -> dict[str, Any]:
    """Return the status as JSON values; fields at their default are left out."""
    document: dict[str, Any] = msgspec.to_builtins(status, enc_hook=values.encode)
    return document


def job_document(job: TrainingJob, *, with_status: bool = True) -> dict[str, Any]:
    """Return the whole object as JSON values, in the order people write it; fields at their default are left out."""
    document: dict[str, Any] = {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": msgspec.to_builtins(job.metadata, enc_hook=values.encode),
        "spec": sparse(job.spec),
    }
    if with_status:
        document["status"] = status_document(job.status)
    return document


def resolved(model: msgspec.Struct) -> dict[str, Any]:
    """Return a model as JSON values with every default filled in, None included."""
    return {
        wire_name: plain(getattr(model, name))
        for name, wire_name in zip(model.__struct_fields__, model.__struct_encode_fields__, strict=True)
    }


def plain(value: Any) -> Any:
    """Return a value of a model as JSON has it."""
    if isinstance(value, msgspec.Struct):
        return resolved(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return values.encode(value) if isinstance(value, values.Duration | values.Params) else value


def value_at(document: Any, path: str) -> Any:
    """Return the value at a path such as `checkpoint.interval`; None if a section above it is absent."""
    for name in path.split("."):
        if not isinstance(document, Mapping):
            return None
        document = document.get(name)
    return document


def sparse(model: msgspec.Struct) -> dict[str, Any]:
    """Return a model as people write it: msgspec leaves out plain defaults but keeps empty sections."""
    return {
        wire_name: sparse(value)
        if isinstance(value, msgspec.Struct)
        else msgspec.to_builtins(value, enc_hook=values.encode)
        for name, wire_name, default in _fields(type(model))
        if (value := getattr(model, name)) != default
    }


@functools.cache
def _fields(model: type[msgspec.Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Return name, wire name and default of each field; msgspec evaluates all annotations each time."""
    return tuple((item.name, item.encode_name, _default(item)) for item in msgspec.structs.fields(model))


def _default(item: msgspec.structs.FieldInfo) -> Any:
    return item.default if item.default_factory is msgspec.NODEFAULT else item.default_factory()


def converted(document: Mapping[str, Any], into: type[T]) -> T:
    """Decode an object as the API server or a file holds it. Null and absent mean the same.

    Raises:
        ValueError: naming the field.
    """
    try:
        return msgspec.convert(_without_nulls(document), into, dec_hook=values.decode)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    except _TooLargeError:
        raise ValueError(f"Expected an `int` of 64 bits - at `${_path_of_too_large(document)}`") from None


class _TooLargeError(Exception):
    """An integer has more than 64 bits: JSON allows any, the API server and fixed-width views do not."""


def _path_of_too_large(value: Any) -> str:
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key == "params":  # any JSON of a trainer
            continue
        step = f".{key}" if isinstance(key, str) else f"[{key}]"
        if isinstance(item, Mapping | list):
            if below := _path_of_too_large(item):
                return f"{step}{below}"
        elif isinstance(item, int) and not MIN_INTEGER <= item <= MAX_INTEGER:
            return step
    return ""


def _read_status(document: Any) -> TrainingJobStatus:
    """Decode a status; a time that cannot be read counts as absent, so that the rest of the status is not lost."""
    try:
        return converted(document, TrainingJobStatus)
    except ValueError:
        return converted(_without_unreadable_times(document), TrainingJobStatus)


def _without_unreadable_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _without_unreadable_times(item)
            for key, item in value.items()
            if key not in TIMES or not isinstance(item, str) or _is_time(item)
        }
    return [_without_unreadable_times(item) for item in value] if isinstance(value, list) else value


def _is_time(text: str) -> bool:
    try:
        values.Time.parse(text)
    except ValueError:
        return False
    return True


def _without_nulls(value: Any) -> Any:
    if isinstance(value, str | float):  # nearly all values; asking whether one is a Mapping costs ten times more
        return value
    if isinstance(value, int):
        if MIN_INTEGER <= value <= MAX_INTEGER:
            return value
        raise _TooLargeError
    if isinstance(value, Mapping):
        # What a trainer's parameters mean by null is the trainer's business.
        return {
            key: item if key == "params" else _without_nulls(item) for key, item in value.items() if item is not None
        }
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def upgraded(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with each missing fact derived from its reason; the same object if none is missing."""
    reason, meet = Reason.of(status.reason), status.rendezvous
    if reason is None:
        return status
    released = reason is Reason.GANG_INCOMPLETE or (reason is Reason.CLUSTER_TOO_SMALL and meet.releases > 0)
    if released and not meet.released:
        meet = replace(meet, released=True)
    if reason is Reason.AGENT_SILENT and not meet.silent:
        meet = replace(meet, silent=True)
    if status.state is State.RECOVERING and reason.kind is Kind.WAITING and not meet.delayed:
        meet = replace(meet, delayed=True)
    if meet is not status.rendezvous:
        status = replace(status, rendezvous=meet)
    if reason in {Reason.TRAINING, Reason.STANDING_STILL} and status.progress.stalled is None:
        status = replace(status, progress=replace(status.progress, stalled=reason is Reason.STANDING_STILL))
    if status.state is State.FAILED and status.exit_code is None:
        status = replace(status, exit_code=exit_code_of(reason))
    return status


# What built-in workloads are trained for, the first that a job reports.
RESULTS = ("successRate", "evalReturn", "evalLength", "exactMatch", "cost")


def columns(status: TrainingJobStatus) -> Columns:
    """Return the columns of a status; unknown ones are empty."""
    progress, rate = status.progress, status.throughput.steps_per_second
    newest = newest_values(status)
    loss, reward = newest.get("loss"), newest.get("reward")
    running = status.state == State.RUNNING
    return Columns(
        progress=f"{whole_percent(progress.percent)}%" if progress.percent is not None else "",
        step=f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step or ""),
        loss=figure(loss) if loss is not None else "",
        reward=figure(reward) if reward is not None else "",
        rate=f"{figure(rate)}/s" if rate is not None else "",
        goodput=f"{whole_percent(status.goodput.percent)}%" if status.goodput is not None else "",
        eta=span(progress.eta_seconds) if running and progress.eta_seconds is not None else "",
        result=_result(newest),
        avoids=_some([each.node for each in status.avoided_nodes]),
    )


def whole_percent(share: float) -> int:
    """Return a share in whole percent, 0 to 100 whatever a status says; what is not done never reads 100."""
    return int(min(max(share, 0.0), 100.0))


def _some(nodes: Sequence[str]) -> str:
    """Return the first two of several names, and the number of the others."""
    return ",".join(nodes[:2]) + (f",+{len(nodes) - 2}" if len(nodes) > 2 else "")


def _result(newest: Mapping[str, float]) -> str:
    """Return what a built-in workload is trained for, as it last evaluated it: the first such metric of the job."""
    name = next((name for name in RESULTS if name in newest), None)
    return f"{name} {figure(newest[name])}" if name is not None else ""


def with_columns(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with what a table shows of it."""
    return replace(status, columns=columns(status))
