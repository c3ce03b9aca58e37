"""Inputs of `s3://` and `gs://`: an object, or all objects below a prefix, by fsspec with s3fs or gcsfs."""

from __future__ import annotations

import base64
import re
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

from torchyard_agent.inputs.hub import sentence
from torchyard_agent.inputs.source import (
    FetchError,
    Input,
    Listing,
    RejectedInputError,
    SourceFile,
    digest_of_listing,
    listing,
)

_LIBRARIES = {"s3": "s3fs", "gs": "gcsfs"}
_PART = 16 << 20
_MD5 = re.compile(r"[0-9a-f]{32}")
# Errors of the libraries that say who may read, by the names of their classes and by the words of their messages.
_DENIED = re.compile(
    r"NoCredentials|PartialCredentials|TokenRetrieval|RefreshError|DefaultCredentials"
    r"|\b(403|401|Forbidden|Unauthorized|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken)\b"
)
_ABSENT = re.compile(r"\b(404|NoSuchBucket|NoSuchKey|Not Found)\b")


class Bucket:
    """A file system of fsspec, and the objects of one input in it."""

    def __init__(self, item: Input) -> None:
        self._input = item
        self._scheme, _, self._path = item.source.partition("://")
        self._anonymous = False
        self._files: Any = None

    def resolve(self) -> Listing:
        """Return the objects; their revision is a digest of names, sizes and tags.

        Raises:
            RejectedInputError: they do not exist, may not be read, or differ from those of an earlier pod.
            FetchError: they cannot be listed now.
        """
        objects = self._call(lambda files: files.find(self._path, detail=True, refresh=True))
        path = self._path.rstrip("/")
        entries = []
        for key, info in objects.items():
            name = key[len(path) + 1 :] if key != path else key.rpartition("/")[2]
            if info.get("type") == "directory" or key.endswith("/") or not self._input.wants(name):
                continue
            size = info.get("size")
            tag, digests = _tag(info)
            entries.append((SourceFile(name, None if size is None else int(size), digests, key), tag))
        revision = digest_of_listing([(file.name, file.size, tag) for file, tag in entries])
        if self._input.revision not in ("", revision):
            raise RejectedInputError(
                f"{self._input.shown} has changed since the job began: its objects have digest {revision[:12]}, "
                f"the job began with {self._input.revision[:12]}"
            )
        if not entries:
            raise RejectedInputError(f"{self._input.shown} does not exist, or has no object that `include` matches")
        return listing(revision, [file for file, _ in entries], self._input.shown)

    def download(self, file: SourceFile, path: Path, report: Callable[[int], None]) -> None:
        """Append to `path` what it lacks of an object.

        Raises:
            RejectedInputError: it does not exist, or may not be read.
            FetchError: it cannot be fetched now.
        """
        assert file.size is not None
        length = path.stat().st_size if path.exists() else 0
        if length > file.size:
            length = 0
        with path.open("ab" if length else "wb") as target:
            while length < file.size:
                end = min(file.size, length + _PART)
                data = self._call(partial(_part, address=file.address, start=length, end=end))
                if not data:
                    raise FetchError(f"{file.address} ended after {length:,} of {file.size:,} bytes")
                target.write(data)
                length += len(data)
                report(length)

    def has_other_tag(self, file: SourceFile) -> bool:
        """Return whether the tag of an object is no digest, since a key of the user encrypts the object."""
        if self._scheme != "s3":
            return False
        bucket, _, key = file.address.partition("/")
        head = self._call(lambda files: files.call_s3("head_object", Bucket=bucket, Key=key))
        return head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head

    def _call(self, work: Callable[[Any], Any]) -> Any:
        """Call the file system; without credentials, as anyone: public buckets need none."""
        try:
            return work(self._system())
        except Exception as error:
            if type(error).__name__ == "NoCredentialsError" and not self._anonymous:
                self._anonymous, self._files = True, None
                return self._call(work)
            raise self._sorted(error) from error

    def _system(self) -> Any:
        if self._files is None:
            try:
                import fsspec

                options: Dict[str, Any] = {"anon": True} if self._anonymous else {}
                self._files = fsspec.filesystem(self._scheme, skip_instance_cache=True, **options)
            except ImportError as error:
                library = _LIBRARIES[self._scheme]
                advice = "`pip install 'torchyard[inputs]'`, or use an image that has it"
                raise RejectedInputError(f"{library} is not installed: {advice}") from error
        return self._files

    def _sorted(self, error: Exception) -> Exception:
        if isinstance(error, (RejectedInputError, FetchError)):
            return error
        cause = sentence(error)
        message = f"{self._input.shown}: {cause}"
        names = f"{type(error).__name__} {type(error.__cause__).__name__} {cause}"
        if isinstance(error, FileNotFoundError) or _ABSENT.search(names):
            return RejectedInputError(f"{self._input.shown} does not exist ({cause})")
        if isinstance(error, PermissionError) or _DENIED.search(names):
            return RejectedInputError(f"{self._input.shown} may not be read ({cause})")
        return FetchError(message)


def _part(files: Any, address: str, start: int, end: int) -> Any:
    return files.cat_file(address, start=start, end=end)


def _tag(info: Dict[str, Any]) -> Tuple[str, Dict[str, str]]:
    """Return what identifies the content of an object, and its digest if there is one.

    An ETag of S3 is the MD5 of an object that was uploaded in one part, unless it is encrypted with a key of the user.
    """
    if info.get("md5Hash"):
        digest = base64.b64decode(info["md5Hash"]).hex()
        return digest, {"md5": digest}
    tag = str(info.get("ETag") or info.get("etag") or "").strip('"')
    return tag, {"md5": tag} if _MD5.fullmatch(tag) else {}
