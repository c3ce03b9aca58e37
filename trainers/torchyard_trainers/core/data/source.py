"""The interface of a data set whose samples are read from files."""

from collections.abc import Sequence
from typing import Any, Protocol

from torchyard_trainers.core.exits import DataError
from torchyard_trainers.core.world import World


class Source(Protocol):
    """Reads samples by id. Which ids a step has follows from its number; a source has no position of its own.

    It is used in processes that are forked from the trainer, so it opens its files where it reads, and uses no GPU.

    Attributes:
        fingerprint: identifies the content; a part of the identity of the run, so that a resumed run reads the same.
    """

    fingerprint: str

    def __len__(self) -> int:
        """Return the number of samples; ids are below it."""

    def lengths(self) -> Sequence[int] | None:
        """Return the tokens of each sample, for packing; None: all samples are equally long."""

    def read(self, ids: Sequence[int]) -> Any:
        """Return the samples of one micro-batch: CPU tensors, nested in tuples, lists and dicts as the loss wants them.

        Raises:
            DataError: a record cannot be used; the message names file, line and field.
        """


def check_same_data(source: Source | None, world: World) -> None:
    """Check that all ranks read the same data; with other data they would hang or learn something else. Collective.

    Raises:
        DataError: naming a rank that reads other data than rank 0.
    """
    found = world.gather(source.fingerprint if source is not None else "")
    other = next((rank for rank, each in enumerate(found) if each != found[0]), None)
    if other is not None:
        raise DataError(f"rank {other} reads other data than rank 0; check that all nodes have the same files")
