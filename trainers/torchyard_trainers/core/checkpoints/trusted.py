"""Reading a checkpoint runs no code of whoever wrote it.

torch.distributed.checkpoint unpickles its index, and what is no tensor, without looking. A pickle may name any function
to be called, and a folder that a job starts from may be somebody else's.
"""

import enum
import io
import pickle
from pathlib import Path

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem

INDEX = ".metadata"
_MODULES = {module.__name__: module for module in (filesystem, metadata)}
_WORDS = (torch.dtype, torch.layout, torch.memory_format)


class UntrustedError(ValueError):
    """A file of a checkpoint holds more than tensors, numbers and text."""


def check_index(folder: Path) -> None:
    """Look through the index of a checkpoint, before anybody believes it.

    Raises:
        UntrustedError: it names what is no part of an index.
        OSError, ValueError: it cannot be read.
    """
    with (folder / INDEX).open("rb") as file:
        try:
            _Index(file).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"{INDEX} is no index of a checkpoint: {error}") from error


class Planner(DefaultLoadPlanner):
    """Takes tensors as they are, and of everything else what `weights_only` lets through."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take in what is no tensor.

        Raises:
            UntrustedError: it is more than numbers and text.
        """
        try:
            torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise UntrustedError(_said(read_item.dest_index.fqn, str(error).splitlines()[0])) from error
        value.seek(0)
        super().load_bytes(read_item, value)


class _Index(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if module in _MODULES:
            found = vars(_MODULES[module]).get(name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        elif module == "torch":
            found = vars(torch).get(name)
            if found is torch.Size or isinstance(found, _WORDS):
                return found
        elif module in {"pathlib", "pathlib._local"} and name == "PosixPath":  # the folder it was written to
            return Path
        elif (module, name) == ("torch.serialization", "_get_layout"):
            return torch.serialization._get_layout  # type: ignore[attr-defined]  # noqa: SLF001 -- as torch pickles a layout
        elif (module, name) == ("builtins", "getattr"):
            return _member
        raise UntrustedError(_said(INDEX, f"it names {module}.{name}"))


def _member(of: object, name: str) -> object:
    """What Python writes for a member of an enumeration in some versions (3.11.2, for one): `getattr(Words, "WORD")`.

    Raises:
        UntrustedError: anything else may be a function.
    """
    if not isinstance(of, enum.EnumType):
        raise UntrustedError(_said(INDEX, f"it names {name} of {of!r}"))
    return of[name]


def _said(what: str, found: str) -> str:
    return f"{what} is not to be trusted: {found}; only tensors, numbers and text are read from a checkpoint"
