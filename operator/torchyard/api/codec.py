"""Between typed models and plain documents (dicts of JSON values)."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from torchyard.api import values
from torchyard.api.resource import TrainingJob
from torchyard.api.status import TrainingJobStatus
from torchyard.api.upgrade import upgraded

# The fields of a status that hold a time.
TIMES = frozenset(
    {
        *("time", "startTime", "endTime", "completionTime", "lastStepTime", "lastTransitionTime", "lastUpdateTime"),
        *("nextRoundTime", "waitingSince"),
    }
)
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


def sparse(model: msgspec.Struct) -> dict[str, Any]:
    """Return a model as people write it: msgspec leaves out plain defaults but keeps empty sections."""
    return {
        item.encode_name: sparse(value)
        if isinstance(value, msgspec.Struct)
        else msgspec.to_builtins(value, enc_hook=values.encode)
        for item in msgspec.structs.fields(model)
        if (value := getattr(model, item.name)) != _default(item)
    }


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
    if isinstance(value, Mapping):
        # What a trainer's parameters mean by null is the trainer's business.
        return {
            key: item if key == "params" else _without_nulls(item) for key, item in value.items() if item is not None
        }
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
