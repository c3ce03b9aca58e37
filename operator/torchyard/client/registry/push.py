"""Write the code of a folder to a registry: one layer, and an index that every kind of node can use."""

import hashlib
import json
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from torchyard.api.values import size
from torchyard.client.backend import Notice
from torchyard.client.registry.layer import Layer, write_layer
from torchyard.client.registry.reference import Reference
from torchyard.client.registry.session import INDEX_TYPE, MANIFEST_TYPE, Session

CODE_DIGEST = "dev.torchyard.code.digest"
"""Annotation of the index and the manifests, and label of the image: what `spec.code.digest` names."""
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
ARCHITECTURES = ("amd64", "arm64")
_CHUNK = 1 << 20
_PROGRESS_SECONDS = 3.0


class Pushed(NamedTuple):
    """An image that is in its registry."""

    reference: str
    """By digest, as `spec.code.image` names it."""
    tag: str
    layer: Layer


async def push(folder: Path, image: Reference, notice: Notice) -> Pushed:
    """Write the code of a folder to a repository; what is there already is not sent again.

    Args:
        folder: whose files travel as those of a bundle do.
        image: repository and tag; without a tag, the image gets one of its code's digest.
        notice: called with each sentence about the code and the progress.

    Raises:
        TorchYardError: the code cannot travel, or the registry refuses it.
    """
    with tempfile.TemporaryFile() as file:
        layer = write_layer(folder, file)
        for sentence in layer.sentences():
            notice(f"torchyard: {sentence}")
        blobs, manifests, index = documents(layer)
        tag = image.tag or f"code-{layer.digest[:12]}"
        async with Session(image, write=True) as session:
            if await session.has(f"sha256:{layer.sha256}"):
                notice(f"torchyard: {image.host} has the files already")
            else:
                body = _Body(file, layer.length, notice)
                await session.put_blob(f"sha256:{layer.sha256}", layer.length, body)
            for blob in blobs:
                if not await session.has(_named(blob)):
                    await session.put_blob(_named(blob), len(blob), lambda blob=blob: blob)  # type: ignore[misc]
            for manifest in manifests:
                await session.put_manifest(_named(manifest), MANIFEST_TYPE, manifest)
            await session.put_manifest(tag, INDEX_TYPE, index)
    return Pushed(image.at(_named(index)), tag, layer)


def documents(layer: Layer) -> tuple[list[bytes], list[bytes], bytes]:
    """Return the configurations and manifests of all architectures, and the index of them (pure).

    A runtime takes only an image of its architecture; all share the layer.
    """
    blobs, manifests, entries = [], [], []
    noted = {CODE_DIGEST: layer.digest}
    files = {"mediaType": LAYER_TYPE, "digest": f"sha256:{layer.sha256}", "size": layer.length}
    for architecture in ARCHITECTURES:
        config = _json({
            "architecture": architecture,
            "os": "linux",
            "config": {"Labels": noted},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.sha256}"]},
        })  # fmt: skip
        described = {"mediaType": CONFIG_TYPE, "digest": _named(config), "size": len(config)}
        manifest = _json({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": described,
            "layers": [files],
            "annotations": noted,
        })  # fmt: skip
        blobs.append(config)
        manifests.append(manifest)
        platform = {"architecture": architecture, "os": "linux"}
        entries.append(
            {"mediaType": MANIFEST_TYPE, "digest": _named(manifest), "size": len(manifest), "platform": platform}
        )
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries, "annotations": noted}
    return blobs, manifests, _json(index)


def _json(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _named(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class _Body:
    """The content of a file, from its beginning at each call, with progress."""

    def __init__(self, file: IO[bytes], length: int, notice: Notice) -> None:
        self._file, self._length, self._notice = file, length, notice

    def __call__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        self._file.seek(0)
        sent, due = 0, time.monotonic() + _PROGRESS_SECONDS
        while data := self._file.read(_CHUNK):
            yield data
            sent += len(data)
            if time.monotonic() >= due:
                due = time.monotonic() + _PROGRESS_SECONDS
                self._notice(f"torchyard: {size(sent)} of {size(self._length)} are sent")
