"""What a user declares: the file, the text that a lock depends on, and what is required of packages of an image."""

import re
import tomllib
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from torchyard.api.names import SCRIPT_SUFFIX
from torchyard.api.spec import TrainingJobSpec
from torchyard.client.errors import TorchYardError
from torchyard.client.requirements.lockfile import is_kept

SCRIPT = "script"
FIELD = "spec.code.requirements"
_BLOCK = re.compile(r"(?m)^# /// script\s*$\s(?P<content>(^#(| .*)$\s)+)^# ///\s*$")  # of PEP 723
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_INDEX = re.compile(r"(-i|--index-url|--extra-index-url)[ =]\s*(\S+)")
_INCLUDED = re.compile(r"(?:-r|--requirement|-c|--constraint)[ =]?\s*(\S+)")
_MAX_FILES = 32

Kind = Literal["file", "project", "lock", "script"]


class Declared(NamedTuple):
    """Requirements as a user wrote them.

    Attributes:
        kind: of the file.
        path: the file.
        texts: everything that a lock is resolved from, by file.
        direct: what is required of packages that an image may have in another version.
        options: indexes of packages, as options of a requirements file.
    """

    kind: Kind
    path: Path
    texts: list[str]
    direct: list[str]
    options: list[str]


def declared(spec: TrainingJobSpec, folder: Path) -> Declared:
    """Read the requirements of a job.

    Args:
        spec: of the job; its code has requirements.
        folder: of the code.

    Raises:
        TorchYardError: there is no such file, or it declares nothing that can travel.
    """
    assert spec.code is not None, "checked by the caller"
    named = str(spec.code.requirements)
    if named == SCRIPT:
        path = _script(spec, folder)
        text = _read(path)
        return Declared("script", path, [text], _kept(_of_block(text, path)), [])
    path = folder / named
    text = _read(path)
    if path.name == "uv.lock":
        project = path.with_name("pyproject.toml")
        return Declared("lock", path, [text, _read(project)], _kept(_of_project(project)), [])
    if path.name == "pyproject.toml":
        return Declared("project", path, [text], _kept(_of_project(path)), [])
    files = _files(path)
    lines = [line for each in files for line in _lines(each)]
    options = [option for line in lines if (option := _index(line)) is not None]
    return Declared("file", path, [_read(each) for each in files], _kept(lines), list(dict.fromkeys(options)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise TorchYardError(
            f"{FIELD}: {path} cannot be read ({reason})", "give a file below spec.code.path"
        ) from error


def _script(spec: TrainingJobSpec, folder: Path) -> Path:
    """Return the script of a command, below the folder of the code."""
    start = folder / (spec.working_dir or "")
    for word in spec.command:
        if word.endswith(SCRIPT_SUFFIX) and (start / word).is_file():
            return start / word
    fix = "name a requirements.txt, or start the script by its path in spec.command"
    raise TorchYardError(f"{FIELD}: script, and spec.command has no script in {start}", fix)


def _of_block(text: str, path: Path) -> list[str]:
    match = _BLOCK.search(text)
    if match is None:
        fix = "add one, as in PEP 723: `# /// script`, `# dependencies = [...]`, `# ///`"
        raise TorchYardError(f"{FIELD}: {path} has no block of dependencies", fix)
    lines = match["content"].splitlines()
    return _dependencies(_toml("\n".join(line[2:] if line.startswith("# ") else line[1:] for line in lines), path))


def _of_project(path: Path) -> list[str]:
    project = _toml(_read(path), path).get("project", {})
    return _dependencies(project if isinstance(project, dict) else {})


def _toml(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TorchYardError(f"{FIELD}: {path} is not TOML ({error})", "correct it") from error


def _dependencies(document: dict[str, Any]) -> list[str]:
    found = document.get("dependencies", [])
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _files(path: Path) -> list[Path]:
    """Return a requirements file and those that it includes."""
    files = [path]
    for each in files:
        for line in _lines(each):
            match = _INCLUDED.match(line)
            if match and (other := each.parent / match[1]) not in files and "://" not in match[1]:
                files.append(other)
        if len(files) > _MAX_FILES:
            raise TorchYardError(f"{FIELD}: {path} includes more than {_MAX_FILES} files", "include fewer")
    return files


def _lines(path: Path) -> list[str]:
    joined = _read(path).replace("\\\n", " ")
    return [text for line in joined.splitlines() if (text := re.sub(r"(^|\s)#.*", "", line).strip())]


def _index(line: str) -> str | None:
    match = _INDEX.match(line)
    if match is None:
        return None
    address = urlsplit(match[2])
    if address.username or address.password:
        what = f"{FIELD}: the index {address.hostname} has credentials in its address, which would travel with the code"
        fix = "leave it out, set UV_INDEX_URL on this machine, and give the pods that variable from a Secret by envFrom"
        raise TorchYardError(what, fix)
    option = "--index-url" if match[1] == "-i" else match[1]
    return f"{option} {match[2]}"


def _kept(lines: list[str]) -> list[str]:
    """Return the requirements of packages that an image keeps in its own version."""
    return [line for line in lines if (match := _NAME.match(line)) and is_kept(match[0])]
