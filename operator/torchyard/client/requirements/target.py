"""For which Python and platform requirements are resolved, and what is installed there already."""

import json
import subprocess
from importlib.resources import files
from typing import NamedTuple

from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_code import Code
from torchyard.client.errors import FAILED, TorchYardError

DEFAULT_PYTHON = "3.12"
"""Of TorchYard's trainer image."""
_PLATFORMS = {"linux/amd64": "x86_64-manylinux_2_28", "linux/arm64": "aarch64-manylinux_2_28"}
_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
_SECONDS = 300

# Printed by the Python of workers: what `packaging` calls the environment of markers, and what is installed.
_PROBE = """
import importlib.metadata, json, os, platform, sys
found = {}
for each in importlib.metadata.distributions():
    if each.metadata["Name"]:
        found.setdefault(each.metadata["Name"], each.version)
version = platform.python_version()
print(json.dumps({"installed": found, "markers": {
    "implementation_name": sys.implementation.name, "implementation_version": version, "os_name": os.name,
    "platform_machine": platform.machine(), "platform_python_implementation": platform.python_implementation(),
    "platform_release": platform.release(), "platform_system": platform.system(),
    "platform_version": platform.version(), "python_full_version": version,
    "python_version": ".".join(platform.python_version_tuple()[:2]), "sys_platform": sys.platform}}))
"""


class Target(NamedTuple):
    """Where requirements will be installed.

    Attributes:
        options: of uv.
        markers: values of environment markers.
        installed: versions by name, as far as they are known.
    """

    options: list[str]
    markers: dict[str, str]
    installed: dict[str, str]

    @property
    def shown(self) -> str:
        """Python and platform, as people read them."""
        markers = self.markers
        return f"Python {markers['python_version']} on {markers['platform_system']} {markers['platform_machine']}"


def of_image(spec: TrainingJobSpec) -> Target:
    """Return the target of a cluster: the image as the job describes it, and what TorchYard's own image has."""
    code = spec.code or Code()
    python = code.python or DEFAULT_PYTHON
    options = ["--python-version", python, "--python-platform", _PLATFORMS[code.platform]]
    installed = of_trainer_image() if spec.image is None else {}
    return Target(options, markers_of(python, _MACHINES[code.platform]), installed)


def of_machine(version: tuple[int, int], machine: str) -> Target:
    """Return the target of a new environment.

    Args:
        version: of its Python.
        machine: as `uname -m` names it.
    """
    python = ".".join(map(str, version))
    options = ["--python-version", python, "--python-platform", f"{machine}-manylinux_2_28"]
    return Target(options, markers_of(python, machine), {})


def markers_of(python: str, machine: str) -> dict[str, str]:
    """Return the values of environment markers on Linux."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def of_trainer_image() -> dict[str, str]:
    """Return the packages of TorchYard's trainer image."""
    text = (files("torchyard.client.requirements") / "trainer_image.txt").read_text(encoding="utf-8")
    return {name: version for line in text.splitlines() for name, _, version in [line.partition("==")] if version}


def of_interpreter(python: str) -> Target:
    """Return the target of a Python of this machine.

    Raises:
        TorchYardError: it cannot be started.
    """
    try:
        done = subprocess.run([python, "-I", "-c", _PROBE], capture_output=True, timeout=_SECONDS, check=True)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = "no answer" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        what = f"the Python of the workers, {python}, does not report its packages ({why})"
        raise TorchYardError(what, "start it by hand to see why", FAILED) from error
    return Target(["--python", python], found["markers"], found["installed"])
