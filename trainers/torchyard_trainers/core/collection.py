"""When Python looks for garbage: not while it imports, and never in what stays until the end."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_IMPORTED_BY = os.getpid()
_exempting = False


@contextmanager
def exemptions() -> Iterator[None]:
    """Allow the functions below to exempt objects from garbage collections until the end of the block.

    A process that was forked from one that has imported this exempts nothing: its parent has exempted the modules. The
    end of the block would make those subject to collections again, too, and the next one would walk and copy what all
    forks share, which takes most of a second.
    """
    global _exempting  # noqa: PLW0603 - one collector per process
    if os.getpid() != _IMPORTED_BY:
        yield
        return
    _exempting = True
    try:
        yield
    finally:
        _exempting = False
        # Some libraries would write that what is exempt when the interpreter ends was leaked.
        gc.unfreeze()


@contextmanager
def no_collections() -> Iterator[None]:
    """Suspend garbage collections while modules are imported, and exempt the modules from later ones.

    Modules are no garbage, yet each collection walks all of them: a fifth of the time that PyTorch takes to import.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _exempting:
            gc.freeze()
        if enabled:
            gc.enable()


def exempt_all() -> None:
    """Collect garbage, and exempt what is left, modules and the model, which later collections would walk."""
    gc.collect()
    if _exempting:
        gc.freeze()
