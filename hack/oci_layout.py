"""OCI image layouts whose bytes depend on their contents alone: what `make release` publishes.

Layers are compressed with zstd of one pinned version, since the bytes that gzip makes differ between versions of zlib.
"""

import hashlib
import json
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import zstandard

from torchyard.client.registry.layer import Hashed
from torchyard.client.registry.session import INDEX_TYPE

LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"
LEVEL = 6
# Inodes and times of the machine that built, which the dynamic linker's configuration notes.
MACHINES_OWN = frozenset({"var/cache/ldconfig/aux-cache"})
Descriptor = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """A folder in the form of the OCI image layout."""

    folder: Path

    def blob(self, content: bytes, media_type: str, **more: Any) -> Descriptor:
        """Store a content and return its descriptor, with the fields `more`."""
        digest = hashlib.sha256(content).hexdigest()
        path = self.folder / "blobs/sha256" / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content), **more}

    def document(self, content: Mapping[str, Any], media_type: str, **more: Any) -> Descriptor:
        """Store a JSON document."""
        return self.blob(json.dumps(content, separators=(",", ":")).encode(), media_type, **more)

    def layer(self, write: Callable[[IO[bytes]], None]) -> tuple[Descriptor, str]:
        """Store what `write` writes, compressed; return its descriptor and the digest of the uncompressed bytes."""
        blobs = self.folder / "blobs/sha256"
        blobs.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=blobs, delete=False) as file:
            packed = Hashed(file.file)
            # The bytes do not depend on the number of threads as long as there is one beside the caller's.
            compressor = zstandard.ZstdCompressor(level=LEVEL, threads=2)
            with compressor.stream_writer(packed, closefd=False) as stream:  # type: ignore[arg-type]
                plain = Hashed(stream)
                write(plain)  # type: ignore[arg-type]
        Path(file.name).chmod(0o644)
        Path(file.name).rename(blobs / packed.digest.hexdigest())
        described = {"mediaType": LAYER, "digest": f"sha256:{packed.digest.hexdigest()}", "size": packed.length}
        return described, f"sha256:{plain.digest.hexdigest()}"

    def finish(self, manifests: Sequence[Descriptor], tag: str, annotations: Mapping[str, str]) -> str:
        """Write the files that make the folder a layout, and return the digest that names its contents in a registry.

        Args:
            manifests: one for each platform, which an index lists; or one of no platform, which needs none.
            tag: the name of the contents in this layout.
            annotations: of the index.
        """
        if [each for each in manifests if "platform" in each]:
            index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests, "annotations": annotations}
            root = self.document(index, INDEX_TYPE)
        else:
            [root] = manifests
        digest: str = root["digest"]
        named = root | {"annotations": {"org.opencontainers.image.ref.name": tag}}
        listed = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [named]}
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        (self.folder / "index.json").write_text(json.dumps(listed, separators=(",", ":")))
        return digest


def normalized(layer: tarfile.TarFile, out: IO[bytes], after: int, epoch: int) -> None:
    """Write a layer again, without what depends on the machine and the time of its build.

    Entries keep their order, which is that of names in each folder; owners are numbers.

    Args:
        layer: what the builder made.
        out: gets the layer.
        after: in seconds since 1970: what is younger has the time of its build, which may be before or after `epoch`.
        epoch: the time that it gets instead.
    """
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as target:
        for member in layer:
            if member.name in MACHINES_OWN:
                continue
            kept = {name: value for name, value in member.pax_headers.items() if name.startswith("SCHILY.xattr.")}
            member.pax_headers, member.uname, member.gname = kept, "", ""
            member.mtime = epoch if member.mtime > after else int(member.mtime)
            target.addfile(member, layer.extractfile(member) if member.isreg() else None)
