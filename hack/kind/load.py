"""Load an image into kind's nodes: only the layers that a node does not have, so that a change of ours costs kilobytes.

`kind load` sends every layer to every node each time, and a node keeps each twice, packed and unpacked. Here a node
gets an OCI image layout without what its containerd has unpacked already, and packed layers go once they are unpacked.
"""

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from cache import KIND
from shell import run, succeeds

LAYOUT = b'{"imageLayoutVersion": "1.0.0"}'


def load(image: str, nodes: tuple[str, ...]) -> int:
    """Make `image` present on each node; returns how many bytes had to be sent.

    Raises:
        RuntimeError: containerd refused the image.
    """
    with tempfile.NamedTemporaryFile(dir=KIND, suffix=".tar") as file, ThreadPoolExecutor() as threads:
        run("docker", "save", "--output", file.name, image)
        return sum(threads.map(lambda node: _send(file.name, image, node), nodes))


def _send(archive: str, image: str, node: str) -> int:
    ctr = ["docker", "exec", "-i", node, "ctr", "--namespace=k8s.io"]
    name, before = f"docker.io/{image}", f"docker.io/{image}.before"
    digests = _layers(image)
    unpacked = set(run(*ctr, "snapshots", "ls").split())
    present = {digest for digest, chain in zip(digests, chain_ids(digests), strict=True) if chain in unpacked}
    # Until the new image is unpacked the old one keeps the layers that both have.
    kept = succeeds(*ctr, "images", "tag", "--force", name, before)
    argv = [*ctr, "images", "import", "--all-platforms", "--snapshotter=overlayfs", "-"]
    with (
        tarfile.open(archive) as saved,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as importer,
    ):
        assert importer.stdin is not None
        assert importer.stdout is not None
        sent = 0
        with suppress(BrokenPipeError):
            sent = write_layout(saved, image, present, importer.stdin)
            importer.stdin.close()
        said = importer.stdout.read().decode(errors="replace")
    if importer.returncode != 0:
        raise RuntimeError(f"loading {image} into {node}: exit code {importer.returncode}\n{said[-2000:]}")
    if kept:
        run(*ctr, "images", "rm", before)
    succeeds(*ctr, "content", "rm", *digests)
    return sent


def _layers(image: str) -> list[str]:
    """Digests of an image's unpacked layers, the base first."""
    found: list[str] = json.loads(run("docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", image))
    return found


def chain_ids(digests: list[str]) -> list[str]:
    """What names each layer together with all below it (OCI image specification, "Layer ChainID")."""
    return list(accumulate(digests, lambda below, digest: _sha256(f"{below} {digest}".encode())))


def write_layout(saved: tarfile.TarFile, image: str, present: set[str], out: BinaryIO) -> int:
    """Write what `docker save` wrote as an OCI image layout without the layers whose digests are in `present`.

    Layers are not compressed, so that a layer's digest is its entry in the image's `rootfs.diff_ids`.
    """
    listed = json.loads(_content(saved, "manifest.json"))[0]
    config = _content(saved, listed["Config"])
    digests = json.loads(config)["rootfs"]["diff_ids"]
    layers = [(digest, _member(saved, name)) for digest, name in zip(digests, listed["Layers"], strict=True)]
    described = [_descriptor("application/vnd.oci.image.layer.v1.tar", digest, tar.size) for digest, tar in layers]
    manifest = _json(
        schemaVersion=2,
        mediaType="application/vnd.oci.image.manifest.v1+json",
        config=_descriptor("application/vnd.oci.image.config.v1+json", _sha256(config), len(config)),
        layers=described,
    )
    root = _descriptor("application/vnd.oci.image.manifest.v1+json", _sha256(manifest), len(manifest))
    root["annotations"] = {"io.containerd.image.name": f"docker.io/{image}"}
    index = _json(schemaVersion=2, mediaType="application/vnd.oci.image.index.v1+json", manifests=[root])

    with tarfile.open(fileobj=out, mode="w|") as layout:
        _add(layout, "oci-layout", LAYOUT)
        _add(layout, _blob(_sha256(config)), config)
        _add(layout, _blob(_sha256(manifest)), manifest)
        for digest, member in dict(layers).items():
            if digest not in present:
                entry = tarfile.TarInfo(_blob(digest))
                entry.size = member.size
                layout.addfile(entry, saved.extractfile(member))
        _add(layout, "index.json", index)
        return layout.offset


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


def _add(layout: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    layout.addfile(entry, io.BytesIO(content))


def _descriptor(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest, "size": size}


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()
