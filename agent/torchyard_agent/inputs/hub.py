"""Inputs of `hf://`: a model or a dataset of the Hugging Face Hub, by huggingface_hub."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
from pathlib import Path
from typing import Any, Callable, Dict

from torchyard_agent.inputs.source import (
    COMMIT,
    Download,
    FetchError,
    Input,
    Listing,
    RejectedInputError,
    SourceFile,
    hub_repository,
    listing,
)

MISSING = "huggingface_hub is not installed: `pip install 'torchyard[inputs]'`, or use an image that has it"
_RETRIED = frozenset({408, 425, 429})
_POLL_SECONDS = 0.5


def resolve(item: Input) -> Listing:
    """Return the files of a repository, at the commit that its revision names now or named in an earlier pod.

    Raises:
        RejectedInputError: it does not exist, or may not be read.
        FetchError: it cannot be fetched now.
    """
    api = _api()
    kind, name, revision = hub_repository(item.source)
    try:
        info = api.repo_info(name, repo_type=kind, revision=item.revision or revision, files_metadata=True)
    except Exception as error:  # of the library and of the one below it
        raise _sorted(error, item.shown) from error
    if not COMMIT.fullmatch(info.sha or ""):
        raise RejectedInputError(f"{item.shown}: the hub names no commit for this revision")
    files = [
        SourceFile(each.rfilename, each.size, _digests(each), item.source)
        for each in info.siblings or ()
        if item.wants(each.rfilename)
    ]
    return listing(info.sha, files, item.shown)


def _digests(sibling: Any) -> Dict[str, str]:
    large = sibling.lfs
    if large is not None and large.sha256:
        return {"sha256": large.sha256}
    return {"git": sibling.blob_id} if COMMIT.fullmatch(sibling.blob_id or "") else {}


def downloader(revision: str, scratch: Path) -> Download:
    """Return the function that downloads files of one commit.

    Args:
        revision: the commit.
        scratch: folder in which the library keeps what is unfinished, and continues it.
    """

    def download(file: SourceFile, path: Path, report: Callable[[int], None]) -> None:
        from huggingface_hub import hf_hub_download

        kind, name, _ = hub_repository(file.address)
        folder = scratch / hashlib.sha256(file.name.encode()).hexdigest()[:16]
        ended = threading.Event()
        watch = threading.Thread(target=_follow, args=(folder, report, ended), daemon=True)
        watch.start()
        try:
            local = hf_hub_download(name, file.name, repo_type=kind, revision=revision, local_dir=folder)
            Path(local).replace(path)
        except Exception as error:
            raise _sorted(error, f"{name}/{file.name}") from error
        finally:
            ended.set()
            watch.join()
        shutil.rmtree(folder, ignore_errors=True)

    return download


def _follow(folder: Path, report: Callable[[int], None], ended: threading.Event) -> None:
    """Report how much of a file the library has written."""
    while not ended.wait(_POLL_SECONDS):
        with contextlib.suppress(OSError, FetchError):  # a file was just moved, or another one failed
            report(max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=0))


def _api() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise RejectedInputError(MISSING) from error
    return HfApi(user_agent="torchyard")


def _sorted(error: Exception, shown: str) -> Exception:
    """Return the failure that an error of the library is, with its own sentence."""
    from huggingface_hub import errors

    if isinstance(error, (RejectedInputError, FetchError)) or (isinstance(error, OSError) and error.errno):
        return error
    message = f"{shown}: {sentence(error).partition(' Please make sure')[0]}"
    code = getattr(getattr(error, "response", None), "status_code", None)
    absent = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError)
    if isinstance(error, errors.LocalEntryNotFoundError):
        return FetchError(message)
    if isinstance(error, (*absent, errors.HFValidationError)):
        return RejectedInputError(message)
    if code is not None and 400 <= code < 500 and code not in _RETRIED:
        return RejectedInputError(message)
    return FetchError(message)


def sentence(error: BaseException) -> str:
    """Return the message of an error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:400] or type(error).__name__
