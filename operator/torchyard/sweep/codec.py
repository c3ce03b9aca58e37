"""Between typed sweeps and plain documents (dicts of JSON values)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from torchyard.api import free_form
from torchyard.api.codec import sparse
from torchyard.sweep.resource import TrainingSweep


def read_sweep(document: Mapping[str, Any]) -> TrainingSweep:
    """Decode a sweep as the API server or a file holds it. Null and absent mean the same.

    Raises:
        ValueError: naming the field.
    """
    try:
        return msgspec.convert(_without_nulls(document), TrainingSweep, dec_hook=free_form.decode)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def sweep_document(sweep: TrainingSweep) -> dict[str, Any]:
    """Return a sweep without its status as people write it; fields at their default are left out."""
    return {
        "apiVersion": sweep.api_version,
        "kind": sweep.kind,
        "metadata": msgspec.to_builtins(sweep.metadata),
        "spec": sparse(sweep.spec),
    }


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: item if key == "params" else _without_nulls(item) for key, item in value.items() if item is not None
        }
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
