"""Where the code of a bundle comes from: commit, branch and changes that are not committed."""

from pathlib import Path
from typing import NamedTuple

from torchyard.api.spec_code import MAX_DIFF_BYTES
from torchyard.client.bundle.listing import git

_CUT = "\n... cut at 8 KiB\n"


class Provenance(NamedTuple):
    """What git knows of a folder; empty texts outside a repository."""

    commit: str = ""
    branch: str = ""
    diff: str = ""
    """Of tracked files in the folder against the commit."""


def provenance(folder: Path) -> Provenance:
    """Return what git knows of a folder."""
    commit = _line(git(folder, "rev-parse", "--verify", "--quiet", "HEAD"))
    if not commit:
        return Provenance()
    branch = _line(git(folder, "symbolic-ref", "--quiet", "--short", "HEAD"))
    changes = git(folder, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--relative", "HEAD", "--", ".")
    return Provenance(commit, branch[:256], _bounded(changes or b""))


def _line(output: bytes | None) -> str:
    return (output or b"").decode("utf-8", "replace").strip()


def _bounded(diff: bytes) -> str:
    """Return the diff as text without control characters, cut at a line."""
    text = diff.decode("utf-8", "replace")
    text = "".join(letter if letter in "\n\t" or letter.isprintable() else "\ufffd" for letter in text)
    if len(text.encode()) <= MAX_DIFF_BYTES:
        return text
    head = text.encode()[: MAX_DIFF_BYTES - len(_CUT)].decode("utf-8", "ignore")
    return head.rpartition("\n")[0] + _CUT
