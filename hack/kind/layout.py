"""An OCI image layout: what containerd reads an image from, here without the layers that it has already."""

import hashlib
import io
import json
import tarfile
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

LAYOUT = b'{"imageLayoutVersion": "1.0.0"}'
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def chain_ids(digests: list[str]) -> list[str]:
    """What names each layer together with all below it (OCI image specification, "Layer ChainID")."""
    return list(accumulate(digests, lambda below, digest: sha256(f"{below} {digest}".encode())))


def write_layout(saved: tarfile.TarFile, image: str, present: set[str], out: BinaryIO) -> int:
    """Write what `docker save` wrote as an OCI image layout without the layers whose digests are in `present`.

    Layers are not compressed, so that a layer's digest is its entry in the image's `rootfs.diff_ids`.
    """
    listed = json.loads(_content(saved, "manifest.json"))[0]
    config = _content(saved, listed["Config"])
    digests = json.loads(config)["rootfs"]["diff_ids"]
    layers = [(digest, _member(saved, name)) for digest, name in zip(digests, listed["Layers"], strict=True)]
    described = [descriptor(LAYER, digest, tar.size) for digest, tar in layers]
    with tarfile.open(fileobj=out, mode="w|") as layout:
        add_head(layout, image, config, described)
        for digest, member in dict(layers).items():
            if digest not in present:
                entry = tarfile.TarInfo(blob(digest))
                entry.size = member.size
                layout.addfile(entry, saved.extractfile(member))
        return layout.offset


def add_head(layout: tarfile.TarFile, image: str, config: bytes, layers: list[dict[str, Any]]) -> None:
    """Everything of an image layout but the layers."""
    manifest = _json(
        schemaVersion=2,
        mediaType=MANIFEST,
        config=descriptor("application/vnd.oci.image.config.v1+json", sha256(config), len(config)),
        layers=layers,
    )
    root = descriptor(MANIFEST, sha256(manifest), len(manifest))
    root["annotations"] = {"io.containerd.image.name": f"docker.io/{image}"}
    add(layout, "oci-layout", LAYOUT)
    add(layout, "index.json", _json(schemaVersion=2, mediaType=INDEX, manifests=[root]))
    add(layout, blob(sha256(config)), config)
    add(layout, blob(sha256(manifest)), manifest)


def _member(saved: tarfile.TarFile, name: str) -> tarfile.TarInfo:
    """A layer of the archive; equal layers are links to one of them."""
    member = saved.getmember(name)
    if member.issym():
        target = (Path(name).parent / member.linkname).as_posix()
        parts: list[str] = []
        for part in target.split("/"):
            parts = parts[:-1] if part == ".." else [*parts, part]
        member = saved.getmember("/".join(parts))
    return member


def _content(saved: tarfile.TarFile, name: str) -> bytes:
    file = saved.extractfile(name)
    assert file is not None, f"{name} is a plain file in what docker save writes"
    return file.read()


def add(layout: tarfile.TarFile, name: str, content: bytes) -> None:
    """Write a file."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    layout.addfile(entry, io.BytesIO(content))


def descriptor(media_type: str, digest: str, size: int) -> dict[str, Any]:
    """What names a blob, its kind and its bytes."""
    return {"mediaType": media_type, "digest": digest, "size": size}


def blob(digest: str) -> str:
    """Where a blob lies."""
    return f"blobs/{digest.replace(':', '/')}"


def sha256(content: bytes) -> str:
    """The digest of a content, as OCI writes it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()
