"""Layers of an image as hard links: Docker has unpacked them on the very file system on which kind's nodes lie.

No container writes to its layers, so all nodes may share their files: a node gets gigabytes in seconds, and this
machine's memory holds them once for all nodes. Where Docker keeps its layers otherwise they are sent (load.py).
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from layout import chain_ids, sha256
from shell import run, succeeds


class Unpacked(NamedTuple):
    """An image as Docker has unpacked it: its configuration, and the folder of each layer, the base first."""

    config: bytes
    layers: tuple[tuple[str, Path], ...]

    def sizes(self) -> list[tuple[str, int]]:
        """Digest and bytes of each layer."""
        return [(digest, int(run("du", "--summarize", "--bytes", folder).split()[0])) for digest, folder in self.layers]


def unpacked(image: str) -> Unpacked | None:
    """Where this machine's Docker has the layers of an image; None: not where we could link to them."""
    found: dict[str, Any] = json.loads(run("docker", "image", "inspect", "--format", "{{json .}}", image))
    driver, digests = found["GraphDriver"], found["RootFS"]["Layers"]
    if driver["Name"] != "overlay2":
        return None
    data = driver["Data"]
    folders = [Path(each) for each in (data["UpperDir"], *data.get("LowerDir", "").split(":")) if each][::-1]
    root = Path(run("docker", "info", "--format", "{{.DockerRootDir}}").strip())
    config = root / "image/overlay2/imagedb/content" / found["Id"].replace(":", "/")
    if len(folders) != len(digests) or not all(os.access(each, os.R_OK) for each in (*folders, config)):
        return None
    content = config.read_bytes()
    return Unpacked(content, tuple(zip(digests, folders, strict=True))) if sha256(content) == found["Id"] else None


def into(node: str, ctr: list[str], image: Unpacked) -> None:
    """Copy every layer that a node's containerd does not have.

    Args:
        node: the container it runs in.
        ctr: what runs containerd's command line in it.
        image: what to link to.

    Raises:
        RuntimeError: it does not lie on the same file system.
    """
    mounts = json.loads(run("docker", "inspect", "--format", "{{json .Mounts}}", node))
    var = Path(next(each["Source"] for each in mounts if each["Destination"] == "/var"))
    snapshots = [*ctr, "snapshots", "--snapshotter", "overlayfs"]
    present = set(run(*snapshots, "ls").split())
    parent: list[str] = []
    chains = chain_ids([digest for digest, _ in image.layers])
    for chain, (_, folder) in zip(chains, image.layers, strict=True):
        if chain not in present:
            _link(snapshots, chain, parent, folder, var)
        parent = [chain]


def _link(snapshots: list[str], chain: str, parent: list[str], folder: Path, var: Path) -> None:
    key = f"link-{chain}"
    succeeds(*snapshots, "rm", key)  # what an interrupted run left
    (mount,) = json.loads(run(*snapshots, "prepare", "--mounts", key, *parent))
    upper = [option.partition("=")[2] for option in mount["Options"] if option.startswith("upperdir=")]
    inside = Path(upper[0] if upper else mount["Source"]).relative_to("/var")
    try:
        run("cp", "--archive", "--link", f"{folder}/.", var / inside)
    except RuntimeError:
        succeeds(*snapshots, "rm", key)
        raise
    run(*snapshots, "commit", chain, key)
