"""TorchYard's trainers: programs for torchrun, configured by environment variables.

A custom workload needs only the names below; importing this package does not import torch.
"""

import logging
from typing import TYPE_CHECKING, Any

# transformers imports torchao, which warns in every process of classes that it registers in an old way.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)

if TYPE_CHECKING:
    from torchyard_trainers.core.parameters import read
    from torchyard_trainers.core.workload import LossOutput, Mean, MicroBatch, Session, Workload

__all__ = ["LossOutput", "Mean", "MicroBatch", "Session", "Workload", "read"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "read":
        from torchyard_trainers.core import parameters

        return parameters.read
    from torchyard_trainers.core import workload

    return getattr(workload, name)
