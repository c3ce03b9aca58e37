"""Between typed sweeps and plain documents (dicts of JSON values)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from torchyard.api import values
from torchyard.api.resource import converted, sparse
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.status import TrainingSweepStatus


def read_sweep(document: Mapping[str, Any]) -> TrainingSweep:
    """Decode a sweep, see `converted`."""
    return converted(document, TrainingSweep)


def read_sweep_status(document: Mapping[str, Any]) -> TrainingSweepStatus:
    """Decode the status of a sweep; unknown fields of a newer version are ignored. See `converted`."""
    return converted(document, TrainingSweepStatus)


def sweep_document(sweep: TrainingSweep) -> dict[str, Any]:
    """Return a sweep without its status as people write it; fields at their default are left out."""
    return {
        "apiVersion": sweep.api_version,
        "kind": sweep.kind,
        "metadata": msgspec.to_builtins(sweep.metadata, enc_hook=values.encode),
        "spec": sparse(sweep.spec),
    }


def sweep_status_document(status: TrainingSweepStatus) -> dict[str, Any]:
    """Return a status as JSON values; fields at their default are left out."""
    document: dict[str, Any] = msgspec.to_builtins(status, enc_hook=values.encode)
    return document
