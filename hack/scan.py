"""Scan the rendered chart, as it is installed by default and with every option on: `make scan`.

Each finding is answered in docs/security.md or fails the scan, and so does an answer to what is no longer found. A
scanner that read no object fails it, too.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("helm", "kube-score", "checkov")
VARIANTS = {"defaults": (), "every option": ("--values", "tests/chart/every-option.yaml")}
ANSWERS = ROOT / "docs/security.md"
_ROW = re.compile(r"^\| (?P<checks>(?:CKV|kube-score: )[^|]*) \| (?P<objects>[^|]*) \|", re.MULTILINE)
_CHECK = re.compile(r"CKV2?_K8S_\d+|(?<=`)[a-z-]+(?=`)")
_CRITICAL = 10  # kube-score's grade of what is in order


class Finding(NamedTuple):
    """One check that an object does not pass."""

    check: str
    thing: str


def main() -> int:
    """Scan; 1 if a finding has no answer, or an answer no finding."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        print(f"scan: not on PATH: {', '.join(missing)}; install them (`make kind-env` has helm)", file=sys.stderr)
        return 1
    answered = answers(ANSWERS.read_text())
    found: set[Finding] = set()
    with tempfile.TemporaryDirectory() as folder:
        for variant, options in VARIANTS.items():
            file = Path(folder) / "chart.yaml"
            file.write_text(_output("helm", "template", "torchyard", "charts/torchyard", *_RELEASE, *options))
            here = {*of_kube_score(file), *of_checkov(file)}
            print(f"{variant}: {len(here)} findings, {len(here - answered)} without an answer")
            found |= here
    for check, thing in sorted(found - answered):
        print(f"scan: {check} of {thing} is not answered in {ANSWERS.relative_to(ROOT)}", file=sys.stderr)
    for check, thing in sorted(answered - found):
        print(f"scan: {check} of {thing} is answered, and not found any more; remove the answer", file=sys.stderr)
    return 1 if found != answered else 0


_RELEASE = ("--namespace", "torchyard-system", "--api-versions", "monitoring.coreos.com/v1")


def answers(page: str) -> set[Finding]:
    """Return what the table of the page answers: checks, and the objects of each."""
    return {
        Finding(check, thing.strip())
        for row in _ROW.finditer(page)
        for check in _CHECK.findall(row["checks"])
        for thing in row["objects"].split(",")
    }


def of_kube_score(file: Path) -> Iterator[Finding]:
    """Yield what kube-score finds, warnings included.

    Raises:
        ValueError: it scored nothing.
    """
    objects = json.loads(_output("kube-score", "score", "--output-format", "json", str(file), codes=(0, 1)))
    if not objects:
        raise ValueError("kube-score scored no object")
    for each in objects:
        thing = named(each["object_meta"]["name"])
        for check in each["checks"]:
            if not check["skipped"] and check["grade"] < _CRITICAL:
                yield Finding(check["check"]["id"], thing)


def of_checkov(file: Path) -> Iterator[Finding]:
    """Yield what checkov finds; it is not asked to download anything.

    Raises:
        ValueError: it checked nothing.
    """
    words = ("--file", str(file), "--framework", "kubernetes", "--skip-download", "--output", "json")
    report = json.loads(_output("checkov", *words, codes=(0, 1)))
    if not report.get("summary", {}).get("passed") or report["summary"]["parsing_errors"]:
        raise ValueError("checkov passed no check, or could not read the chart")
    for each in report["results"]["failed_checks"]:
        yield Finding(each["check_id"], named(each["resource"]))


def named(resource: str) -> str:
    """Return how the page names an object of the chart."""
    names = {"-test": "test pod", "-intake": "intake"}
    return next((name for end, name in names.items() if f"torchyard{end}" in resource), "operator")


def _output(*words: str, codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode not in codes:
        raise ValueError(f"{words[0]} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
