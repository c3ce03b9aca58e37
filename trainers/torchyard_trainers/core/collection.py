"""When Python looks for garbage: not while it imports, and never in what stays until the end."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Suspend garbage collections while modules are imported.

    Modules are no garbage, yet each collection walks all of them: a fifth of the time that PyTorch takes to import.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def exempt_all() -> None:
    """Exempt what exists now, modules and the model, from garbage collections, which would walk it in every step."""
    gc.collect()
    gc.freeze()
