"""How tensors get into and out of a folder: torch.distributed.checkpoint. The only file that knows it."""

import errno
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from torchyard_trainers.core.exits import CheckpointError, Exit, causes, exit_code
from torchyard_trainers.core.world import World


class Shards(Protocol):
    """Storage of a (nested) dict of tensors; both calls are collective, errors are raised on every rank."""

    def save(self, state: dict[str, Any], folder: Path) -> None:
        """Write all tensors, durably."""

    def load(self, state: dict[str, Any], folder: Path) -> None:
        """Fill the given tensors in place, at whatever world size or sharding they were written."""

    def written_by(self, rank: int, folder: Path) -> list[Path]:
        """Give the files of one rank; rank 0 also answers for the index."""


class DcpShards:
    """One file a rank and an index; replicated tensors are written once."""

    def __init__(self, world: World) -> None:
        """Use the process group of `world`, if it has one."""
        self._world = world

    def save(self, state: dict[str, Any], folder: Path) -> None:
        """See `Shards`."""
        from torch.distributed import checkpoint

        try:
            with _quiet():
                writer = checkpoint.FileSystemWriter(folder, sync_files=True)
                checkpoint.save(state, storage_writer=writer, no_dist=not self._world.grouped)
        except checkpoint.CheckpointException as error:  # a BaseException, which no guard would catch
            if any(_SHORT_WRITE.search(str(cause)) for cause in causes(error)):
                raise _short_write(folder) from error
            raise RuntimeError(f"saving {folder} failed on ranks {sorted(error.failures)}") from error

    def load(self, state: dict[str, Any], folder: Path) -> None:
        """See `Shards`."""
        from torch.distributed import checkpoint

        try:
            with _quiet():
                reader = checkpoint.FileSystemReader(folder)
                checkpoint.load(state, storage_reader=reader, no_dist=not self._world.grouped)
        except (checkpoint.CheckpointException, RuntimeError, KeyError, ValueError) as error:
            if exit_code(error) is not Exit.USER_ERROR:  # a peer or the volume is gone: the checkpoint may be fine
                raise RuntimeError(f"loading {folder} failed") from error
            raise CheckpointError(f"{folder}: does not fit this model ({str(error)[-300:].strip()})") from error

    def written_by(self, rank: int, folder: Path) -> list[Path]:
        """See `Shards`."""
        index = [folder / ".metadata"] if rank == 0 else []
        return index + sorted(folder.glob(f"__{rank}_*"))


# torch's zip writer hides the errno of a write that the volume cut short.
_SHORT_WRITE = re.compile(r"PytorchStreamWriter|inline_container|unexpected pos")
_FULL_BELOW_BYTES = 1024 * 1024


def _short_write(folder: Path) -> OSError:
    """Say of a write that fell short whether the volume is full or broken."""
    number = errno.ENOSPC if shutil.disk_usage(folder).free < _FULL_BELOW_BYTES else errno.EIO
    return OSError(number, os.strerror(number))


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out DCP's warning that a world of one is a world of one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def capture(module: nn.Module, optimizer: Optimizer, workload: dict[str, Any]) -> dict[str, Any]:
    """Give the state of training under names that no strategy changes."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model_state, optimizer_state = get_state_dict(module, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "workload": workload}


def apply(module: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Put loaded state back into model and optimizer."""
    from torch.distributed.checkpoint.state_dict import set_state_dict

    set_state_dict(module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
