"""What an input is fetched from, the files that a source has, and the two ways in which a fetch fails (pure)."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple
from urllib.parse import unquote, urlsplit

MAX_FILES = 100_000
MAX_NAME = 1024
COMMIT = re.compile(r"[0-9a-f]{40}")


class RejectedInputError(Exception):
    """The input does not exist, may not be read, or is not what the job names: trying again cannot help."""


class FetchError(Exception):
    """The input cannot be fetched now: the network, the server or the disk fails."""


@dataclass(frozen=True)
class Input:
    """One input as the settings describe it.

    Attributes:
        name: of the input.
        source: what `from` says.
        sha256: of the file of an `https://` source.
        include: patterns of the files to fetch; empty: all.
        revision: which an earlier pod of the job has fetched; empty: none yet.
    """

    name: str
    source: str
    sha256: str = ""
    include: Tuple[str, ...] = ()
    revision: str = ""

    @property
    def shown(self) -> str:
        """The source without its query, which may hold a signature."""
        return self.source.partition("?")[0]

    def key(self, revision: str) -> str:
        """Return the name of the folder in the cache that has this revision."""
        identity = [self.source, list(self.include), revision]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]

    def wants(self, name: str) -> bool:
        """Return whether a file is one of those to fetch."""
        return not self.include or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.include)


@dataclass(frozen=True)
class SourceFile:
    """A file of a source.

    Attributes:
        name: below the folder of the input, with `/` between its parts.
        size: in bytes; None: not known before it was fetched.
        digests: of its content by algorithm: `sha256`, `md5`, or `git` for a blob of git.
        address: by which the source finds it.
    """

    name: str
    size: Optional[int]
    digests: Mapping[str, str] = field(default_factory=dict)
    address: str = ""


@dataclass(frozen=True)
class Listing:
    """The files of a source at one revision."""

    revision: str
    files: Tuple[SourceFile, ...]

    @property
    def total(self) -> Optional[int]:
        """Bytes of all files; None: not known."""
        sizes = [each.size for each in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


Download = Callable[[SourceFile, Path, Callable[[int], None]], None]
"""Write the content of a file to a path, and report the number of bytes that lie there."""


def read(text: str) -> List[Input]:
    """Return the inputs of the JSON of `TORCHYARD_INPUTS`."""
    entries: List[Dict[str, Any]] = json.loads(text)["inputs"]
    return [
        Input(
            name=str(each["name"]),
            source=str(each["from"]),
            sha256=str(each.get("sha256", "")),
            include=tuple(each.get("include", ())),
            revision=str(each.get("revision", "")),
        )
        for each in entries
    ]


def file_of_url(url: str) -> str:
    """Return the name of the file behind a URL: the last part of its path."""
    return unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2]) or "file"


def hub_repository(source: str) -> Tuple[str, str, str]:
    """Return type, name and revision of `hf://[datasets/]ORG/NAME@REVISION`."""
    name, _, revision = source[len("hf://") :].partition("@")
    kind = "model"
    if name.startswith("datasets/") and name.count("/") > 1:
        kind, name = "dataset", name.partition("/")[2]
    return kind, name, revision


def listing(revision: str, files: Sequence[SourceFile], shown: str) -> Listing:
    """Return a listing whose names lead to files below one folder.

    Raises:
        RejectedInputError: there is no file, there are too many, or a name leads elsewhere.
    """
    if not files:
        raise RejectedInputError(f"{shown} has no files")
    if len(files) > MAX_FILES:
        raise RejectedInputError(
            f"{shown} has {len(files):,} files, the limit is {MAX_FILES:,}: pack them into archives"
        )
    names = {each.name for each in files}
    for each in files:
        _check_name(each.name, shown)
        parts = each.name.split("/")
        parent = next((head for end in range(1, len(parts)) if (head := "/".join(parts[:end])) in names), None)
        if parent is not None:
            raise RejectedInputError(f"{shown}: {parent!r} is a file and the folder of {each.name!r}")
    if len(names) < len(files):
        raise RejectedInputError(f"{shown} has two files of one name")
    return Listing(revision=revision, files=tuple(sorted(files, key=lambda each: each.name)))


def _check_name(name: str, shown: str) -> None:
    parts = name.split("/")
    odd = not name.isprintable() or "\\" in name or len(name) > MAX_NAME
    if odd or any(part in ("", ".", "..") or len(part.encode("utf-8", "replace")) > 255 for part in parts):
        raise RejectedInputError(f"{shown}: {name[:80]!r} is not the name of a file below a folder")


def digest_of_listing(files: Sequence[Tuple[str, Optional[int], str]]) -> str:
    """Return a revision for sources without revisions, from names, sizes and tags of all files."""
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()[:40]
