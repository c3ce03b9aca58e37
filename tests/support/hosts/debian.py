"""Programs of Debian packages that need not be installed: those of PATH, else unpacked into ~/.cache/torchyard/debian.

    python -m tests.support.hosts.debian [openssh-server] [slurm]     # apt-get download, dpkg -x; no root needed

A test asks for a program with `program(...)`; without it, it is skipped with the line that says how to get it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path("~/.cache/torchyard/debian").expanduser()
LIBRARIES = ROOT / "usr/lib/x86_64-linux-gnu"
PACKAGES = {
    "openssh-server": ["openssh-server", "libwrap0"],
    "slurm": [
        "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libhwloc15", "libmunge2", "libjson-c5",
        "libfreeipmi17", "libipmimonitoring6", "libpmix2", "libnuma1", "libhttp-parser2.9", "libjwt0", "libyaml-0-2",
        "librdkafka1", "liblz4-1", "libdbus-1-3", "libreadline8", "readline-common", "libncurses6",
    ],
}  # fmt: skip
_PLACES = ("/usr/sbin", "/usr/local/sbin", str(ROOT / "usr/sbin"), str(ROOT / "usr/bin"))


def program(name: str, package: str) -> str:
    """Return the path of a program; skip the test where it is missing."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_PLACES]))
    if path is None:
        pytest.skip(f"no {name}: `python -m tests.support.hosts.debian {package}` unpacks Debian's (no root needed)")
    return path


def environment() -> dict[str, str]:
    """Return the environment in which unpacked programs find their libraries."""
    folders = [str(LIBRARIES), str(LIBRARIES / "slurm-wlm"), os.environ.get("LD_LIBRARY_PATH", "")]
    places = [str(ROOT / "usr/sbin"), str(ROOT / "usr/bin"), os.environ.get("PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, folders)), "PATH": ":".join(places)}


def unpack(names: list[str]) -> None:
    """Download packages with apt-get, and unpack them."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = [package for name in names for package in PACKAGES[name]]
        subprocess.run(["apt-get", "download", *wanted], cwd=folder, check=True)
        ROOT.mkdir(parents=True, exist_ok=True)
        for file in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(file), str(ROOT)], check=True)


if __name__ == "__main__":
    unpack(sys.argv[1:] or list(PACKAGES))
