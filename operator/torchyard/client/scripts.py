"""A script that travels to a cluster inside its job: what fits, and what cannot come with it."""

import ast
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from torchyard.api.spec import MAX_SCRIPT_BYTES
from torchyard.client.backend import Notice
from torchyard.client.errors import TorchYardError


def readable_by_pods(script: Path, image: str | None, words: Sequence[str], notice: Notice) -> str:
    """Read a script that travels inside the job, as `spec.script`.

    Args:
        script: to send.
        image: that the pods run, None for the operator's default.
        words: arguments of the script.
        notice: called with what may go wrong in the pods.

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
    build = f"build an image that holds your code and start it there: `{shlex.join(command)}`"
    if len(data) > MAX_SCRIPT_BYTES:
        what = f"{script} has {len(data) / 1024:.0f} KiB; a job carries at most {MAX_SCRIPT_BYTES // 1024} KiB"
        raise TorchYardError(what, build)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise TorchYardError(f"{script}: byte 0x{data[error.start]:02x} is not UTF-8", "save it as UTF-8") from error
    if "\0" in text or not text.strip():
        raise TorchYardError(f"{script} is no Python source", "give the path of a script")
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
