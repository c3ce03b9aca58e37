"""A local copy of an advisory database in OSV format, for an audit where no index answers for vulnerabilities.

It is a clone of the PyPA advisory database (YAML) or an export of OSV's PyPI ecosystem (JSON, as a folder or a zip).
Source of the rules: https://ossf.github.io/osv-schema/, "evaluation".
"""

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

Advisory = dict[str, Any]
SUFFIXES = {".json", ".yaml", ".yml"}
MAX_BYTES = 4 * 1024 * 1024
"""Of one advisory; the largest have some 100 KiB."""


class Advisories:
    """Advisories by the normalized name of the package that they affect.

    Raises:
        ValueError: the path holds no advisory of a Python package.
    """

    def __init__(self, path: Path) -> None:
        self.newest = ""
        self.count = 0
        self._of: dict[str, list[tuple[Advisory, Advisory]]] = {}
        for advisory in read(path):
            found = [
                each for each in advisory.get("affected", ()) if each.get("package", {}).get("ecosystem") == "PyPI"
            ]
            if not found or "withdrawn" in advisory:
                continue
            self.count += 1
            self.newest = max(self.newest, str(advisory.get("modified", "")))
            for affected in found:
                self._of.setdefault(normal(affected["package"]["name"]), []).append((advisory, affected))
        if not self.count:
            raise ValueError(f"{path} holds no advisory of a PyPI package; give a folder or a zip of OSV files")

    def audit(self, packages: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
        """Return name, version and vulnerabilities of each package, in the form of pip-audit."""
        return [
            {"name": name, "version": version, "vulns": self._vulnerabilities(name, version)}
            for name, version, _ in packages
        ]

    def _vulnerabilities(self, name: str, version: str) -> list[dict[str, Any]]:
        found = {
            advisory["id"]: sorted(fixes(affected))
            for advisory, affected in self._of.get(name, ())
            if affects(affected, version)
        }
        return [{"id": code, "fix_versions": fixed} for code, fixed in found.items()]


def read(path: Path) -> Iterator[Advisory]:
    """Yield every advisory of a folder or a zip.

    Raises:
        ValueError: a file is not an advisory, or too large for one.
    """
    if path.is_dir():
        files = (file for file in sorted(path.rglob("*")) if file.suffix in SUFFIXES and file.is_file())
        texts: Iterator[tuple[str, bytes]] = ((str(file), file.read_bytes()[: MAX_BYTES + 1]) for file in files)
    elif zipfile.is_zipfile(path):
        texts = _zipped(path)
    else:
        raise ValueError(f"{path} is neither a folder nor a zip; give one with OSV files")
    for name, text in texts:
        if len(text) > MAX_BYTES:
            raise ValueError(f"{name} has more than {MAX_BYTES // 1024**2} MiB: not an advisory")
        advisory = json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
        if isinstance(advisory, dict) and "id" in advisory:
            yield advisory


def _zipped(path: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if Path(entry.filename).suffix in SUFFIXES:
                with archive.open(entry) as file:
                    yield entry.filename, file.read(MAX_BYTES + 1)


def affects(affected: Advisory, version: str) -> bool:
    """Return whether a version is listed, or lies in a range.

    Raises:
        ValueError: a version of the range cannot be compared.
    """
    if version in affected.get("versions", ()):
        return True
    ranges = (each for each in affected.get("ranges", ()) if each.get("type") == "ECOSYSTEM")
    return any(_within(each["events"], Version(version)) for each in ranges)


def _within(events: list[dict[str, str]], version: Version) -> bool:
    inside = False
    for at, kind in sorted((_version(text), kind) for event in events for kind, text in event.items()):
        if kind == "introduced" and at <= version:
            inside = True
        if (kind == "fixed" and at <= version) or (kind == "last_affected" and at < version):
            inside = False
    return inside


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise ValueError(f"{text!r} is not a version of PEP 440") from error


def fixes(affected: Advisory) -> set[str]:
    """Return the versions that fix a vulnerability."""
    events = (
        event for each in affected.get("ranges", ()) if each.get("type") == "ECOSYSTEM" for event in each["events"]
    )
    return {event["fixed"] for event in events if "fixed" in event}


def normal(name: str) -> str:
    """Return the name of a package as PEP 503 normalizes it."""
    return re.sub(r"[-_.]+", "-", name).lower()
