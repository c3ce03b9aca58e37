"""Load an image into kind's nodes: what they have is not sent, what Docker has unpacked is linked (link.py).

`kind load` sends every layer to every node each time, and a node keeps each twice, packed and unpacked. Here a node
gets an OCI image layout without what its containerd has unpacked already, and packed layers go once they are unpacked.
"""

import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, BinaryIO

import link
from cache import KIND
from layout import LAYER, add, add_head, blob, chain_ids, descriptor, sha256, write_layout
from shell import run, say, succeeds


def load(image: str, nodes: tuple[str, ...]) -> int:
    """Make `image` present on each node; returns how many bytes had to be sent.

    Raises:
        RuntimeError: containerd refused the image.
    """
    with ThreadPoolExecutor() as threads:
        found = link.unpacked(image)
        if found is not None:
            described = [descriptor(LAYER, digest, size) for digest, size in found.sizes()]
            if all(threads.map(lambda node: _linked(found, described, image, node), nodes)):
                return 0
        with tempfile.NamedTemporaryFile(dir=KIND, suffix=".tar") as file:
            run("docker", "save", "--output", file.name, image)
            return sum(threads.map(lambda node: _send(file.name, image, node), nodes))


def _linked(found: link.Unpacked, described: list[dict[str, Any]], image: str, node: str) -> bool:
    """Whether a node has the image now, without a layer having been sent."""
    ctr = _ctr(node)
    try:
        link.into(node, ctr, found)
    except RuntimeError as error:
        say(f"layers are sent to {node}, for they cannot be linked: {error}")
        return False

    def write(out: BinaryIO) -> None:
        with tarfile.open(fileobj=out, mode="w|") as layout:
            add_head(layout, image, found.config, described)

    _import(ctr, f"{image} into {node}", write)
    return True


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
    config["rootfs"]["diff_ids"].append(sha256(layer))
    config.pop("history", None)
    described = [*manifest["layers"], descriptor(LAYER, sha256(layer), len(layer))]

    def write(out: BinaryIO) -> None:
        with tarfile.open(fileobj=out, mode="w|") as layout:
            add_head(layout, image, json.dumps(config).encode(), described)
            add(layout, blob(sha256(layer)), layer)

    _import(ctr, f"{image} into {node}", write)


def _archive(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            add(tar, name, content)
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
    """Stream what `write` writes to containerd, and return what `write` returned."""
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
