"""Decode a TrainingSweep as an API server returns it, or report what is wrong with it. No object makes this raise."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from torchyard.api.resource import ObjectMeta
from torchyard.api.validation.parse import MAX_PROBLEM, metadata_of
from torchyard.sweeps.codec import read_sweep, read_sweep_status
from torchyard.sweeps.resource import MAX_SWEEP_NAME, TrainingSweep
from torchyard.sweeps.rules import first_fault
from torchyard.sweeps.status import TrainingSweepStatus


class InvalidSweep(Struct, frozen=True, kw_only=True):
    """A sweep that cannot be run as it is."""

    metadata: ObjectMeta
    status: TrainingSweepStatus
    problem: str
    """Field, value and fix, in one sentence."""

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return (self.metadata.namespace, self.metadata.name)


def parse_sweep(
    document: Mapping[str, Any], before: TrainingSweep | InvalidSweep | None = None
) -> TrainingSweep | InvalidSweep | None:
    """Read one object; None: it has not even a name.

    Args:
        document: as decoded from JSON.
        before: what was made of this object the last time: a spec of the same generation is not judged again.
    """
    metadata = metadata_of(document)
    if metadata is None:
        return None
    status = _status(document)
    if isinstance(before, TrainingSweep) and _same_spec(before.metadata, metadata):
        return msgspec.structs.replace(before, metadata=metadata, status=status)
    if len(metadata.name) > MAX_SWEEP_NAME:
        problem = f"metadata.name: longer than {MAX_SWEEP_NAME} characters: give it a shorter name"
        return InvalidSweep(metadata=metadata, status=status, problem=problem)
    try:
        sweep = read_sweep({**document, "metadata": {"name": metadata.name}, "status": {}})
        fault = first_fault(sweep.spec)
    except (ValueError, RecursionError) as error:
        problem = (str(error) or "nested too deeply")[:MAX_PROBLEM]
        return InvalidSweep(metadata=metadata, status=status, problem=problem)
    if fault is not None:
        path, what, fix = fault
        problem = f"{path}: {what}: {fix}"[:MAX_PROBLEM]
        return InvalidSweep(metadata=metadata, status=status, problem=problem)
    return msgspec.structs.replace(sweep, metadata=metadata, status=status)


def _same_spec(before: ObjectMeta, now: ObjectMeta) -> bool:
    return (before.uid, before.generation) == (now.uid, now.generation)


def _status(document: Mapping[str, Any]) -> TrainingSweepStatus:
    """Return the status; the default if it cannot be read, since all of it follows from the trials."""
    try:
        return read_sweep_status(document.get("status") or {})
    except (ValueError, RecursionError):
        return TrainingSweepStatus()
