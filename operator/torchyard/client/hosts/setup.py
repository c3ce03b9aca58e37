"""Put TorchYard and the code of a job on a host: one folder each, named by the digest of its content.

An environment of Python (`python -m venv --without-pip`) is a folder that every process of a run finds its modules in,
without a variable that the programs of users would inherit. Where the Python of the workers can run the controller,
too, the environment shows its libraries, torch above all.
"""

import hashlib
import json
import posixpath
from importlib.metadata import requires
from typing import NamedTuple

from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.hosts.package import Package, package_for
from torchyard.client.hosts.preflight import Probe
from torchyard.client.hosts.ssh import CUT, Host, HostError
from torchyard.client.requirements.resolve import sentence

ENVIRONMENT_PYTHON = (3, 12)
"""That uv creates environments with."""

# $1 folder, $2 Python, $3 folders of libraries as JSON, $4 digest of the archive on stdin.
_INSTALL = """
set -eu
umask 077
[ ! -x "$1/bin/torchyard" ] || exit 0
mkdir -p "$(dirname "$1")"
fresh=$(mktemp -d "$1.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
"$2" -m venv --without-pip "$fresh"
"$fresh/bin/python" -I -c '
import hashlib, io, json, sys, sysconfig, tarfile
from pathlib import Path
data = sys.stdin.buffer.read()
if hashlib.sha256(data).hexdigest() != sys.argv[2]:
    sys.exit("the package arrived damaged: start the command again")
site = Path(sysconfig.get_path("purelib"))
tarfile.open(fileobj=io.BytesIO(data), mode="r:gz").extractall(site)
folders = json.loads(sys.argv[1])
lines = ["import site; site.addsitedir(%r)\\n" % folder for folder in folders]
(site / "torchyard-host.pth").write_text("".join(lines))
bin = Path(sysconfig.get_path("scripts"))
for name, module in (("torchrun", "torch.distributed.run"), ("torchyard", "torchyard.cli.main")):
    if name == "torchrun" and not folders:
        continue
    flag = "-P " if name == "torchyard" else ""
    (bin / name).write_text("#!/bin/sh\\nexec \\"${0%/*}/python\\" " + flag + "-m " + module + " \\"$@\\"\\n")
    (bin / name).chmod(0o700)
' "$3" "$4"
mv -T "$fresh" "$1" 2>/dev/null || [ -x "$1/bin/torchyard" ]
trap - EXIT
rm -rf "$fresh"
"""

# $1 folder for the digest; an archive on stdin.
_UNPACK = """
set -eu
umask 077
[ ! -d "$1" ] || { cat >/dev/null; exit 0; }
mkdir -p "$(dirname "$1")"
fresh=$(mktemp -d "$1.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
tar -xzf - -C "$fresh"
mv -T "$fresh" "$1" 2>/dev/null || [ -d "$1" ]
trap - EXIT
rm -rf "$fresh"
"""

# $1 uv, $2 folder, $3 version of Python, $4 requirements; text of a requirements file on stdin.
_CREATE = """
set -eu
umask 077
[ ! -e "$2/complete" ] || { cat >/dev/null; exit 0; }
mkdir -p "$(dirname "$2")"
rm -rf "$2"
cat >"$2.txt"
"$1" venv --quiet --python "$3" "$2" >&2
"$1" pip install --quiet --python "$2/bin/python" -r "$2.txt" >&2
touch "$2/complete"
"""


class Tools(NamedTuple):
    """What is on a host now."""

    torchyard: str
    """Command of TorchYard."""
    programs: str | None
    """Folder of the `torchrun` and `python` of the workers; None: those of TorchYard's environment."""


def install(host: Host, report: Probe) -> Tools:
    """Put TorchYard on a host, unless it is there.

    Raises:
        TorchYardError: it cannot be installed.
    """
    assert report.controller is not None, "the preflight requires it"
    python, version = report.controller
    package = package_for(report.platform(version))
    own = version == report.python[:2] and python == report.executable
    search = json.dumps(list(report.search) if own else [])
    key = hashlib.sha256(f"{package.digest} {python} {search}".encode()).hexdigest()[:16]
    folder = f"{report.home.path}/host/{key}"
    if not _exists(host, f"{folder}/bin/torchyard"):
        host.run(_INSTALL, folder, python, search, _digest(package), stdin=package.archive.read_bytes())
    programs = None if own else posixpath.dirname(report.torchrun or report.executable)
    return Tools(f"{folder}/bin/torchyard", programs)


def create_environment(host: Host, report: Probe, requirements: str, *, trainer: bool) -> str:
    """Create an environment with uv on a host, unless one with these requirements is there; return its Python.

    Args:
        host: where.
        report: its answer.
        requirements: text of a requirements file; torch is added where it is missing.
        trainer: whether what the built-in workloads import is added.

    Raises:
        TorchYardError: uv cannot create it; its message.
    """
    assert report.uv is not None, "the preflight requires it"
    lines = [requirements.strip(), "torch", *(_of_trainers() if trainer else [])]
    text = "\n".join(line for line in lines if line) + "\n"
    version = ".".join(map(str, ENVIRONMENT_PYTHON))
    key = hashlib.sha256(f"{version}\n{text}".encode()).hexdigest()[:16]
    folder = f"{report.home.path}/environments/{key}"
    try:
        host.run(_CREATE, report.uv, folder, version, stdin=text.encode())
    except HostError as error:
        if error.returncode == CUT:
            raise
        what = f"uv cannot create an environment on {host.shown}: {sentence(error.printed)}"
        raise TorchYardError(what, "correct the requirements, or what uv needs there", FAILED) from error
    return f"{folder}/bin/python"


def send_folder(host: Host, report: Probe, archive: bytes, digest: str, label: str) -> str:
    """Put a folder of code on a host, unless it is there; return the path that a run starts in.

    The path is the same for every version of the code of one folder of this machine.

    Args:
        host: where.
        report: its answer.
        archive: compressed tar of the folder.
        digest: of its content.
        label: of the folder on this machine.
    """
    folder, link = f"{report.home.path}/code/{digest}", f"{report.home.path}/work/{label}"
    if not _exists(host, folder):
        host.run(_UNPACK, folder, stdin=archive)
    host.run('mkdir -p "$(dirname "$2")" && ln -sfn "$1" "$2.new" && mv -T "$2.new" "$2"', folder, link)
    return link


def _exists(host: Host, path: str) -> bool:
    return host.run('[ -e "$1" ] && echo yes || echo no', path).strip() == b"yes"


def _digest(package: Package) -> str:
    with package.archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_trainers() -> list[str]:
    mark = 'extra == "trainers"'
    return [each.partition(";")[0].strip() for each in requires("torchyard") or () if mark in each.replace("'", '"')]
