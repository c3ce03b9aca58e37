"""Stand-ins for the packages of an image, with which uv resolves from a folder of wheels that lacks them.

uv resolves for one target and knows nothing of an image. A stand-in is an empty wheel with the name and version that
the image has. It requires nothing, since the image has that as well. The lock names no stand-in.
"""

import hashlib
import re
import zipfile
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from torchyard.client.requirements.lockfile import entries, normal

LEFT_TO_IMAGE = ("numpy", "torch", "triton")
"""Packages that stay as an image has them. Where it is not known, its agent compares their versions."""
_VERSION = re.compile(r"[0-9A-Za-z.!_-]+")
_HASH = "--hash=sha256:"


def stand_ins(installed: Mapping[str, str], folder: Path) -> set[str]:
    """Write a wheel for each package of an image; return their SHA-256 in hexadecimal.

    Args:
        installed: versions by name; what a build adds to one, such as `+cu130`, is left out.
        folder: of the wheels, which is created.
    """
    folder.mkdir()
    return {
        _stand_in(normal(name).replace("-", "_"), public, folder)
        for name, version in sorted(installed.items())
        if _VERSION.fullmatch(public := version.partition("+")[0])
    }


def _stand_in(name: str, version: str, folder: Path) -> str:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: torchyard\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def without(text: str, digests: AbstractSet[str]) -> str:
    """Return a requirements file with digests without those of stand-ins, and without packages that are nothing else.

    Args:
        text: of uv.
        digests: of the stand-ins, SHA-256 in hexadecimal.
    """
    if not digests:
        return text
    kept = []
    for head, hashes in entries(text):
        real = [each for each in hashes if each.removeprefix(_HASH) not in digests]
        if real or not hashes:
            kept.append(" \\\n    ".join([head, *real]))
    return "\n".join(kept) + "\n"


def left_to_image(wheels: Path) -> list[str]:
    """Return which of the packages that an unknown image keeps are not in a folder of wheels."""
    names = {normal(each.name.partition("-")[0]) for each in wheels.glob("*.whl")}
    return [name for name in LEFT_TO_IMAGE if name not in names]
