"""Build the images of a release with Docker, and write each as an OCI layout with the same bytes on every machine.

Docker stamps layers, configuration and history with the time of the build, which may be long ago where it kept a layer.
All of them are written again here: what is younger than the first layer of the base gets the time of the commit.
"""

import datetime as dt
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from oci_layout import Descriptor, Layout, normalized

from torchyard.client.registry.push import CONFIG_TYPE
from torchyard.client.registry.session import MANIFEST_TYPE

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "https://github.com/torchyard/torchyard"
# One file of Python on no base at all: it is built once and is of every platform.
OF_EVERY_PLATFORM = ("agent", ("linux/amd64", "linux/arm64"))
# What files of ours have in an image: images/finish.sh.
OF_OURS = dt.datetime(1980, 1, 1, tzinfo=dt.UTC)
KEPT = ("Env", "Entrypoint", "Cmd", "User", "WorkingDir", "Labels", "ExposedPorts", "Volumes", "StopSignal")


@dataclass(frozen=True)
class Origin:
    """What a release is made from."""

    version: str
    commit: str
    epoch: int
    """Time of the commit, in seconds since 1970, which all that is built gets."""

    def annotations(self) -> dict[str, str]:
        """Return what manifests state of it."""
        return {
            "org.opencontainers.image.created": moment(self.epoch),
            "org.opencontainers.image.revision": self.commit,
            "org.opencontainers.image.source": SOURCE,
            "org.opencontainers.image.version": self.version,
        }


def write(targets: Sequence[str], platforms: Sequence[str], folder: Path, origin: Origin) -> dict[str, str]:
    """Build targets of the Dockerfile, write a layout of each into `folder`, and return their digests.

    Args:
        targets: of the Dockerfile.
        platforms: such as linux/amd64; Docker emulates one that is not of this machine, where it can.
        folder: gets one folder for each target.
        origin: the commit that is built.

    Raises:
        ValueError: Docker does not build a target; its last lines are in the message.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digests, version = {}, origin.version
    for target in targets:
        layout, manifests = Layout(folder / target), []
        everywhere = target == OF_EVERY_PLATFORM[0]
        for platform in platforms[:1] if everywhere else platforms:
            with tempfile.NamedTemporaryFile(dir=folder, suffix=".tar") as saved:
                docker("save", "--output", saved.name, built(target, platform, version))
                with tarfile.open(saved.name) as archive:
                    listed = OF_EVERY_PLATFORM[1] if everywhere else [platform]
                    manifests += image(archive, layout, listed, origin, on_nothing=everywhere)
        digests[target] = layout.finish(manifests, version, origin.annotations())
        listed = [each["platform"]["architecture"] for each in manifests]
        print(f"{folder / target}: {digests[target]}, {', '.join(listed)}")
    return digests


def built(target: str, platform: str, version: str) -> str:
    """Have Docker build a target, and return the name of the image."""
    name = f"torchyard/release-{target}-{platform.replace('/', '-')}:{version}"
    options = [
        "--network",
        "host",
        "--target",
        target,
        "--tag",
        name,
        "--label",
        f"org.opencontainers.image.source={SOURCE}",
    ]
    if base := os.environ.get("BASE_IMAGE"):
        options += ["--build-arg", f"BASE_IMAGE={base}"]
    if os.environ.get("NO_CACHE"):
        options += ["--no-cache"]
    docker("build", "--platform", platform, *options, str(ROOT))
    return name


def docker(*arguments: str) -> None:
    """Run a command of Docker.

    Raises:
        ValueError: it fails, or Docker is not there.
    """
    try:
        done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ValueError("images are built by Docker, which is not on PATH; install it, or set TARGETS=none") from error
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise ValueError(f"docker {' '.join(arguments)}: exit code {done.returncode}\n{last}")


def image(
    saved: tarfile.TarFile, layout: Layout, platforms: Sequence[str], origin: Origin, *, on_nothing: bool
) -> list[Descriptor]:
    """Write the image of what `docker save` wrote, and return its manifest for each platform.

    Args:
        saved: the archive.
        layout: that gets the image.
        platforms: that its files run on.
        origin: of the image.
        on_nothing: it has no base.
    """
    listed = json.loads(_read(saved, "manifest.json"))[0]
    config = json.loads(_read(saved, listed["Config"]))
    base = OF_OURS if on_nothing else dt.datetime.fromisoformat(config["history"][0]["created"][:19] + "Z")
    after = int(base.timestamp())
    layers, diff_ids = [], []
    for name in listed["Layers"]:
        with tarfile.open(fileobj=_file(saved, name)) as layer:
            described, diff_id = layout.layer(lambda out, layer=layer: normalized(layer, out, after, origin.epoch))  # type: ignore[misc]
        layers.append(described)
        diff_ids.append(diff_id)
    manifests = []
    for platform in platforms:
        system, architecture = platform.split("/")[:2]
        own = layout.document(configuration(config, diff_ids, architecture, after, origin.epoch), CONFIG_TYPE)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": own,
            "layers": layers,
            "annotations": origin.annotations(),
        }
        of_platform = {"os": system, "architecture": architecture}
        manifests.append(layout.document(manifest, MANIFEST_TYPE, platform=of_platform))
    return manifests


def _file(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)  # follows links: equal layers are links to one of them
    assert file is not None, f"{name} is a plain file in what docker save writes"
    return file


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    return _file(archive, name).read()


def configuration(
    built: Mapping[str, Any], diff_ids: list[str], architecture: str, after: int, epoch: int
) -> dict[str, Any]:
    """Return the configuration of an image without names and times of its build."""
    history = [
        {"created": each["created"][:19] + "Z" if each["created"][:19] + "Z" <= moment(after) else moment(epoch)}
        | {name: each[name] for name in ("created_by", "empty_layer") if each.get(name)}
        for each in built["history"]
    ]
    return {
        "created": moment(epoch),
        "architecture": architecture,
        "os": built["os"],
        "config": {name: built["config"][name] for name in KEPT if built["config"].get(name)},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": history,
    }


def moment(epoch: int) -> str:
    """Return a time as OCI writes it."""
    return dt.datetime.fromtimestamp(epoch, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
