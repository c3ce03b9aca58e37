"""Look for known vulnerabilities in everything that `requirements.lock` pins: `make audit`.

An audit that looked at nothing finds nothing. So what was audited is compared with the lock, package by package, and
a package that was left out fails it, as a vulnerability does.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parent.parent
MOST_SHOWN = 20
_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;\\]+)(?: *; *([^\\]*))?", re.MULTILINE)


def main(lock: Path) -> int:
    """Audit a lock file; 1 if there is a vulnerability, or a package that was not audited."""
    pinned = packages(lock.read_text())
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
    done = subprocess.run([sys.executable, "-m", "pip_audit", *argv], stdout=subprocess.PIPE, text=True, check=False)
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        print(f"{lock.name}: the audit failed with code {done.returncode} and audited nothing", file=sys.stderr)
        return 1
    faults = judge(pinned, found)
    for fault in faults[:MOST_SHOWN]:
        print(f"{lock.name}: {fault}", file=sys.stderr)
    if len(faults) > MOST_SHOWN:
        print(f"{lock.name}: and {len(faults) - MOST_SHOWN} more", file=sys.stderr)
    if not faults:
        print(f"{lock.name}: {len(found)} packages audited, no known vulnerability")
    return 1 if faults else 0


def packages(lock: str) -> list[tuple[str, str, str]]:
    """Return normalized name, version and marker of everything that is pinned; a name may stand there twice."""
    return [(normal(name), version, marker.strip()) for name, version, marker in _PINNED.findall(lock)]


def judge(pinned: list[tuple[str, str, str]], found: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong: vulnerabilities, and packages that nobody looked at."""
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
    here = [(name, version) for name, version, marker in pinned if not marker or Marker(marker).evaluate()]
    return faults + [f"{name} {version} was not audited" for name, version in here if (name, version) not in audited]


def normal(name: str) -> str:
    """Return the name of a package as PEP 503 normalizes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(max(main(Path(name)) for name in sys.argv[1:] or [str(ROOT / "requirements.lock")]))
