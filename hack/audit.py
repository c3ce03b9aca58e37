"""Look for known vulnerabilities in everything that `requirements.lock` pins: `make audit`.

An audit that looked at nothing finds nothing. So what was audited is compared with the lock, package by package, and
a package that was left out fails it, as a vulnerability does.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from advisories import Advisories, normal
from packaging.markers import Marker

ROOT = Path(__file__).resolve().parent.parent
MOST_SHOWN = 20
_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;\\]+)(?: *; *([^\\]*))?", re.MULTILINE)


def main(lock: Path, advisories: Path | None = None) -> int:
    """Audit a lock file; 1 if there is a vulnerability, or a package that was not audited.

    Args:
        lock: the lock file.
        advisories: a local copy of an advisory database (`hack/advisories.py`); None: asks the package index.
    """
    pinned = packages(lock.read_text())
    try:
        if advisories is None:
            source, found = "the package index", of_index(lock)
        else:
            known = Advisories(advisories)
            source = f"{known.count:,} advisories in {advisories}, the newest of {known.newest[:10]}"
            found = known.audit([each for each in pinned if applies(each[2])])
    except ValueError as error:
        print(f"{lock.name}: nothing was audited: {error}", file=sys.stderr)
        return 1
    faults = judge(pinned, found)
    for fault in faults[:MOST_SHOWN]:
        print(f"{lock.name}: {fault}", file=sys.stderr)
    if len(faults) > MOST_SHOWN:
        print(f"{lock.name}: and {len(faults) - MOST_SHOWN} more", file=sys.stderr)
    if not faults:
        print(f"{lock.name}: {len(found)} packages audited, no known vulnerability ({source})")
    return 1 if faults else 0


def of_index(lock: Path) -> list[dict[str, Any]]:
    """Return what the package index knows of every package of a lock file, in the form of pip-audit.

    Raises:
        ValueError: it cannot be asked, or knows of no package.
    """
    argv = [
        "--requirement",
        str(lock),
        "--require-hashes",
        "--disable-pip",
        "--format",
        "json",
        "--progress-spinner",
        "off",
    ]
    command = [sys.executable, "-m", "pip_audit", *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError) as error:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise ValueError(f"pip-audit ended with code {done.returncode}: {said[-1]}") from error
    if found and all("skip_reason" in each for each in found):
        raise ValueError(
            f"the package index that is asked here knows no vulnerability of any of {len(found)} packages, as an index "
            f"that serves files alone ({found[0]['skip_reason']}); run it where the JSON API of PyPI answers, or give "
            "a copy of the advisory database: make audit ADVISORIES=FOLDER (docs/security.md)"
        )
    return found


def packages(lock: str) -> list[tuple[str, str, str]]:
    """Return normalized name, version and marker of everything that is pinned; a name may stand there twice."""
    return [(normal(name), version, marker.strip()) for name, version, marker in _PINNED.findall(lock)]


def judge(pinned: list[tuple[str, str, str]], found: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong: vulnerabilities, and packages that were not checked."""
    faults = [] if pinned else ["it pins no package: nothing was audited"]
    audited = set()
    for each in found:
        name = normal(each["name"])
        if "skip_reason" in each:
            faults.append(f"{name} was not audited: {each['skip_reason']}")
            continue
        audited.add((name, each["version"]))
        for vulnerability in each.get("vulns", ()):
            fixed = ", ".join(vulnerability.get("fix_versions") or ["no version"])
            faults.append(f"{name} {each['version']} has {vulnerability['id']}, fixed in {fixed}")
    here = [(name, version) for name, version, marker in pinned if applies(marker)]
    return faults + [f"{name} {version} was not audited" for name, version in here if (name, version) not in audited]


def applies(marker: str) -> bool:
    """Return whether a package with this marker is installed here."""
    return not marker or Marker(marker).evaluate()


if __name__ == "__main__":
    locks = [Path(name) for name in sys.argv[1:]] or [ROOT / "requirements.lock"]
    copy = Path(os.environ["ADVISORIES"]) if os.environ.get("ADVISORIES") else None
    sys.exit(max(main(lock, copy) for lock in locks))
