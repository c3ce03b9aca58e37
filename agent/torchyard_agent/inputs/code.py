"""The code of a job that is not sent with it: fetched from git, or in a folder that is mounted, such as an image.

Before the first round it is made known under its digest, in the folder in which rounds look for their code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple

from torchyard_agent.inputs import cache, git
from torchyard_agent.inputs.source import FetchError, Listing, RejectedInputError, SourceFile
from torchyard_agent.workers import code

VARIABLE = "TORCHYARD_CODE_SOURCE"
NAME = "spec.code"
"""As which the code is reported among the inputs; no input can have this name."""
LOCK_SECONDS = 1.0
_TAR = "code.tar"


class CodeSource(NamedTuple):
    """The place that the code comes from, as the settings name it.

    Attributes:
        root: folder in which each code has a folder named by its digest.
        digest: of the files; empty: any.
        shown: where it comes from, as people read it.
        folder: where it is mounted; empty: it is fetched.
        absent: what is wrong if that is no folder.
        cache: folder of what is fetched, which holds nothing else: what no round has used for a month is deleted.
        git: see `git.Repository`.
    """

    root: str
    digest: str = ""
    shown: str = ""
    folder: str = ""
    absent: str = ""
    cache: str = ""
    git: Mapping[str, Any] = {}


def read(text: str) -> CodeSource:
    """Return what the variable says."""
    return CodeSource(**json.loads(text))


def prepare(source: CodeSource, report: Any, sleep: Callable[[float], None] = time.sleep) -> None:
    """Make the code of a job known under its digest.

    Args:
        source: the code.
        report: progress of the fetch, see `fetch.Progress`.
        sleep: between looks at the lock of another process.

    Raises:
        MismatchError: it is not what the job names.
        RejectedInputError: it cannot be had.
        FetchError: it cannot be had now.
    """
    root = Path(source.root)
    if source.folder:
        folder = Path(source.folder)
        if not folder.is_dir():
            raise RejectedInputError(source.absent or f"{source.shown} has no such folder")
        report.set(NAME, state="fetching", message=None)
        files, size, digest = _measured(folder, report)
        _require(source, digest)
        with code.locked(root):
            link = root / digest
            if not link.is_symlink() or link.resolve() != folder.resolve():
                code.remove(link)
                link.symlink_to(folder)
    else:
        repository = git.Repository(**source.git)
        archive = _fetched(source, repository, report, sleep)
        with code.locked(root), _unpacked(archive, root) as tree:
            files, size, digest = _measured(tree, report)
            _require(source, digest)
            code.protect(tree)
            code.remove(root / digest)
            code.move(tree, root / digest)
    report.set(NAME, state="ready", revision=digest, bytes=size, totalBytes=size, files=files, message=None)


def _require(source: CodeSource, digest: str) -> None:
    if source.digest and digest != source.digest:
        what = f"the code of {source.shown} has digest {digest[:12]}, and the job names {source.digest[:12]}"
        raise code.MismatchError(what)


def _measured(folder: Path, report: Any) -> Any:
    """Return the number of files, their bytes and the digest of a folder."""
    last = [0, 0]

    def note(files: int, size: int) -> None:
        last[:] = files, size
        report.have(NAME, "", size)

    digest = code.digest_of(folder, note)
    return (*last, digest)


def _fetched(source: CodeSource, repository: git.Repository, report: Any, sleep: Callable[[float], None]) -> Path:
    """Return the tar of a commit; one process fetches it for all that share the cache."""
    identity = json.dumps([repository.url, repository.commit, repository.path])
    folder = Path(source.cache)
    folder.mkdir(parents=True, exist_ok=True)
    entry = cache.Entry(folder, hashlib.sha256(identity.encode()).hexdigest()[:32])
    while entry.manifest() is None:
        with entry.locked() as mine:
            if mine and entry.manifest() is None:
                report.set(NAME, state="fetching", message=None)
                for below in (entry.files, entry.scratch):
                    below.mkdir(parents=True, exist_ok=True)
                file = SourceFile(_TAR, None, {}, "")
                git.fetch(repository, entry.scratch, entry.path_of(file), lambda size: report.have(NAME, "", size))
                entry.commit(Listing(repository.commit, (file,)))
            if mine:
                break
        report.set(NAME, message="another process fetches it")
        sleep(LOCK_SECONDS)
    cache.expire(folder, entry.folder.name)
    return entry.folder / _TAR


@contextlib.contextmanager
def _unpacked(archive: Path, root: Path) -> Any:
    temporary = Path(tempfile.mkdtemp(prefix=".unpack-", dir=root))
    try:
        tree = temporary / "tree"
        tree.mkdir()
        with archive.open("rb") as file:
            code.extract(file, tree, code.MAX_FETCHED_FILES)
        yield tree
    except code.MismatchError:
        raise
    except OSError as error:
        raise FetchError(f"the code cannot be unpacked ({error.strerror})") from error
    finally:
        code.remove(temporary)
