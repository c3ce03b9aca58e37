"""Read the code of an image into a folder of this machine."""

import asyncio
import contextlib
import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from torchyard.api.files import remove_tree
from torchyard.client.backend import Notice
from torchyard.client.errors import NotStoredError, TorchYardError
from torchyard.client.registry.layer import MAX_BYTES, MAX_FILES
from torchyard.client.registry.reference import Reference, parse
from torchyard.client.registry.session import Session
from torchyard.local.environment import image_folder
from torchyard.local.run import home_folder

_TAR_BYTES = MAX_BYTES + MAX_FILES * 3072


def pull_code(image: str, notice: Notice, home: Path | None = None) -> Path:
    """Return the folder with the files of an image, which are read once.

    Args:
        image: as `spec.code.image` names it.
        notice: called before something is read from the registry.
        home: in which the folder is; None: `$TORCHYARD_HOME`.

    Raises:
        TorchYardError: the registry refuses, or the image has something else than code.
    """
    target = image_folder(home or home_folder(), image)
    if target.is_dir():
        with contextlib.suppress(OSError):
            os.utime(target)
        return target
    notice(f"torchyard: code: reads {image}")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=target.parent) as file, ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _read_layer(parse(image), file)).result()  # also where a loop runs in this thread
        file.seek(0)
        fresh = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
        try:
            _extract(file, fresh, image)
            if not target.is_dir():
                fresh.rename(target)
        except OSError as error:
            if not target.is_dir():
                raise NotStoredError(f"the code of {image}", error) from error
        finally:
            remove_tree(fresh)
    return target


async def _read_layer(image: Reference, file: IO[bytes]) -> None:
    async with Session(image, write=False) as session:
        document = await _document(session, image.digest)
        if "manifests" in document:
            document = await _document(session, str(document["manifests"][0]["digest"]))
        layers = document.get("layers")
        if not isinstance(layers, list) or len(layers) != 1 or not str(layers[0].get("mediaType", "")).endswith(".tar"):
            what = f"{image.at(image.digest)} is not code that `torchyard push` has written"
            raise TorchYardError(what, "push the folder, and name what is printed in spec.code.image")
        digest, computed, length = str(layers[0]["digest"]), hashlib.sha256(), 0
        async for piece in session.blob(digest):
            length += len(piece)
            if length > _TAR_BYTES:
                raise TorchYardError(f"{image.at(image.digest)} is larger than code can be")
            computed.update(piece)
            file.write(piece)
        _require(digest, computed.hexdigest(), image)


async def _document(session: Session, digest: str) -> Mapping[str, Any]:
    data = await session.manifest(digest)
    _require(digest, hashlib.sha256(data).hexdigest(), session.image)
    document = json.loads(data)
    return document if isinstance(document, dict) else {}


def _require(digest: str, computed: str, image: Reference) -> None:
    if digest != f"sha256:{computed}":
        raise TorchYardError(f"{image.host} sent other content than {digest[:19]} of {image.repository}", "try again")


def _extract(file: IO[bytes], folder: Path, image: str) -> None:
    """Write the files of the layer; nothing outside of the folder, and neither devices nor more than code may have."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            total = 0
            for count, member in enumerate(tar, 1):
                total += member.size
                if count > MAX_FILES or total > MAX_BYTES:
                    raise TorchYardError(f"{image} is larger than code can be")
                tar.extract(member, folder, filter="data")
    except tarfile.TarError as error:
        raise TorchYardError(f"{image} has a damaged layer ({error})", "push the code again") from error
