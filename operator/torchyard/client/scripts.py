"""The job of a script without a job file: what starts it, and what travels with it to a cluster."""

import ast
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchyard.api.backends import Backend
from torchyard.api.launch import torchrun
from torchyard.api.names import derived_name
from torchyard.api.spec import MAX_SCRIPT_BYTES
from torchyard.client.backend import Notice
from torchyard.client.bundle.attach import program_location
from torchyard.client.errors import TorchYardError


def script_spec(
    script: Path, words: Sequence[str], backend: Backend, image: str | None, notice: Notice
) -> dict[str, Any]:
    """Return the fields of a spec that start a Python script with torchrun.

    Args:
        script: a cluster gets its text, this machine its path.
        words: its arguments.
        backend: where it will run.
        image: that the pods run; None: the operator's default.
        notice: called with warnings about what may fail in the pods.

    Raises:
        TorchYardError: it does not exist, or cannot travel.
    """
    if backend == "cluster":
        return {"script": readable_by_pods(script, image, words, notice), "args": list(words)}
    if not script.is_file():
        raise TorchYardError(f"{script}: there is no such file", "give the path of a script or of a job file")
    return {"command": [*torchrun(words), str(script)], "args": list(words)}


def script_in_code(script: Path, words: Sequence[str], code: Path) -> dict[str, Any]:
    """Return the fields of a spec that start a script of a folder that travels with the job.

    Raises:
        TorchYardError: the script is not in that folder.
    """
    place = program_location(code, script)
    spec = {"command": [*torchrun(words), str(place.script)], "args": list(words)}
    return spec if place.working_dir is None else {**spec, "workingDir": place.working_dir}


def script_name(script: Path) -> str:
    """Return the name of a job that runs a script: `__main__.py` has that of its folder."""
    return derived_name(script.absolute().parent.name if script.stem == "__main__" else script.stem)


def readable_by_pods(script: Path, image: str | None, words: Sequence[str], notice: Notice) -> str:
    """Read a script that travels inside the job, as `spec.script`.

    Args:
        script: to send.
        image: that the pods run, None for the operator's default.
        words: arguments of the script.
        notice: called with warnings about what may fail in the pods.

    Raises:
        TorchYardError: it does not fit into a job, or needs modules that cannot come with it.
    """
    try:
        data = script.read_bytes()
    except OSError as error:
        raise TorchYardError(
            f"{script} cannot be read ({error.strerror})", "give the path of a readable file"
        ) from error
    command = ["torchyard", "submit", "--image", image or "IMAGE", "--", "torchrun", script.name, *words]
    build = f"add --code . to send the folder, or build an image that holds your code: `{shlex.join(command)}`"
    if len(data) > MAX_SCRIPT_BYTES:
        what = f"{script} has {len(data) / 1024:.0f} KiB; a job carries at most {MAX_SCRIPT_BYTES // 1024} KiB"
        raise TorchYardError(what, build)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TorchYardError(f"{script}: byte 0x{data[error.start]:02x} is not UTF-8", "save it as UTF-8") from error
    if "\0" in text or not text.strip():
        raise TorchYardError(f"{script} is not Python source", "give the path of a script")
    beside = modules_beside(text, script, notice)
    if beside:
        what = f"{script} imports {', '.join(beside)} from its folder, and only the script itself is sent"
        if image is None:
            raise TorchYardError(what, build)
        notice(f"torchyard: {what}: {image} must have {'it' if len(beside) == 1 else 'them'} installed")
    return text


def modules_beside(text: str, script: Path, notice: Notice) -> list[str]:
    """Return the modules that a script imports from its own folder, as far as its import statements show."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:  # the image may have a newer Python
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        notice(f"torchyard: {script}:{error.lineno}: {error.msg}, says Python {version}; submitted as it is")
        return []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    folder = script.absolute().parent
    return sorted(
        name
        for name in found - set(sys.stdlib_module_names)
        if (folder / f"{name}.py").is_file() or next((folder / name).glob("*.py"), None) is not None
    )
