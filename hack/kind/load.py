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
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from cache import KIND
from shell import run, succeeds

LAYOUT = b'{"imageLayoutVersion": "1.0.0"}'
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def load(image: str, nodes: tuple[str, ...]) -> int:
    """Make `image` present on each node; returns how many bytes had to be sent.

    Raises:
        RuntimeError: containerd refused the image.
    """
    with tempfile.NamedTemporaryFile(dir=KIND, suffix=".tar") as file, ThreadPoolExecutor() as threads:
        run("docker", "save", "--output", file.name, image)
        return sum(threads.map(lambda node: _send(file.name, image, node), nodes))


def load_on_top(image: str, base: str, files: Mapping[str, bytes], nodes: tuple[str, ...], *, folder: str) -> None:
    """Make an image of `base`, which the nodes have, and some files, by path, on each node: nothing else is sent.

    Args:
        image: its name.
        base: the image below.
        files: what it has beside.
        nodes: that get it.
        folder: the working directory of its containers.

    Raises:
        RuntimeError: a node has no `base`, or refused the image.
    """
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda node: _stack(image, base, _archive(files), node, folder), nodes))


def _stack(image: str, base: str, layer: bytes, node: str, folder: str) -> None:
    ctr = _ctr(node)
    found = run(*ctr, "images", "ls", f"name==docker.io/{base}").split()
    digest = next((word for word in found if word.startswith("sha256:")), None)
    if digest is None:
        raise RuntimeError(f"{node} has no image {base}: make kind-images")
    manifest = json.loads(run(*ctr, "content", "get", digest))
    config = json.loads(run(*ctr, "content", "get", manifest["config"]["digest"]))
    config["config"]["WorkingDir"] = folder
    config["rootfs"]["diff_ids"].append(_sha256(layer))
    config.pop("history", None)
    described = [*manifest["layers"], _descriptor(LAYER, _sha256(layer), len(layer))]

    def write(out: BinaryIO) -> None:
        with tarfile.open(fileobj=out, mode="w|") as layout:
            _add_head(layout, image, json.dumps(config).encode(), described)
            _add(layout, _blob(_sha256(layer)), layer)

    _import(ctr, f"{image} into {node}", write)


def _archive(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            _add(tar, name, content)
    return out.getvalue()


def _send(archive: str, image: str, node: str) -> int:
    ctr = _ctr(node)
    name, before = f"docker.io/{image}", f"docker.io/{image}.before"
    digests = _layers(image)
    unpacked = set(run(*ctr, "snapshots", "ls").split())
    present = {digest for digest, chain in zip(digests, chain_ids(digests), strict=True) if chain in unpacked}
    # Until the new image is unpacked the old one keeps the layers that both have.
    kept = succeeds(*ctr, "images", "tag", "--force", name, before)
    with tarfile.open(archive) as saved:
        sent = _import(ctr, f"{image} into {node}", lambda out: write_layout(saved, image, present, out))
    if kept:
        run(*ctr, "images", "rm", before)
    succeeds(*ctr, "content", "rm", *digests)
    return sent or 0


def _ctr(node: str) -> list[str]:
    return ["docker", "exec", "-i", node, "ctr", "--namespace=k8s.io"]


def _import(ctr: list[str], what: str, write: Callable[[BinaryIO], int | None]) -> int | None:
    """Let containerd read what `write` writes; what that returned."""
    argv = [*ctr, "images", "import", "--all-platforms", "--snapshotter=overlayfs", "-"]
    written = None
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as importer:
        assert importer.stdin is not None
        assert importer.stdout is not None
        with suppress(BrokenPipeError):
            written = write(importer.stdin)
            importer.stdin.close()
        said = importer.stdout.read().decode(errors="replace")
    if importer.returncode != 0:
        raise RuntimeError(f"loading {what}: exit code {importer.returncode}\n{said[-2000:]}")
    return written


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
    described = [_descriptor(LAYER, digest, tar.size) for digest, tar in layers]
    with tarfile.open(fileobj=out, mode="w|") as layout:
        _add_head(layout, image, config, described)
        for digest, member in dict(layers).items():
            if digest not in present:
                entry = tarfile.TarInfo(_blob(digest))
                entry.size = member.size
                layout.addfile(entry, saved.extractfile(member))
        return layout.offset


def _add_head(layout: tarfile.TarFile, image: str, config: bytes, layers: list[dict[str, Any]]) -> None:
    """Everything of an image layout but the layers."""
    manifest = _json(
        schemaVersion=2,
        mediaType=MANIFEST,
        config=_descriptor("application/vnd.oci.image.config.v1+json", _sha256(config), len(config)),
        layers=layers,
    )
    root = _descriptor(MANIFEST, _sha256(manifest), len(manifest))
    root["annotations"] = {"io.containerd.image.name": f"docker.io/{image}"}
    _add(layout, "oci-layout", LAYOUT)
    _add(layout, "index.json", _json(schemaVersion=2, mediaType=INDEX, manifests=[root]))
    _add(layout, _blob(_sha256(config)), config)
    _add(layout, _blob(_sha256(manifest)), manifest)


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
