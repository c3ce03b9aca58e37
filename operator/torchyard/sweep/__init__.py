"""Sweeps: many trials of one job, each with other parameters."""

import importlib
import sys
import types
from typing import Any


class _Package(types.ModuleType):
    """Makes the package callable: `torchyard.sweep(...)` of the Python API has its name.

    An import of any module in here binds `torchyard.sweep` to this package, whatever it was before.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Search for parameters, see `torchyard.client.sync.sweep`."""
        # By name: what is decided here knows nothing of the API.
        return importlib.import_module("torchyard.client.sync").sweep(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
