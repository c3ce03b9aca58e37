"""Print where the time of a test run went, as Markdown: `python hack/test_times.py build/times`.

Each tier leaves a JUnit file there. Seconds of a tier are of the clock, and its end is counted from when the first tier
started; seconds of a test count its fixtures, too. Seconds of a processor are those of the test's process and its
descendants, without nodes of a cluster. `make test` leaves the kernel's processor times there, of before and after it.
"""

import argparse
import sys
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree as ET

TIERS = ("unit", "e2e", "cluster", "alone", "learning")
SLOWEST = 30


def main(argv: list[str]) -> int:
    """Print a table of tiers and one of the slowest tests."""
    parser = argparse.ArgumentParser(description="Print where the time of a test run went.")
    parser.add_argument("folder", type=Path, help="with the JUnit files of the tiers")
    parser.add_argument("--slowest", type=int, default=SLOWEST, help=f"tests to list, {SLOWEST} if not given")
    chosen = parser.parse_args(argv)
    folder = chosen.folder
    suites = {tier: ET.parse(file).getroot()[0] for tier in TIERS if (file := folder / f"{tier}.xml").exists()}
    if not suites:
        sys.stderr.write(f"no times in {folder}: run `make test` or one of its tiers first\n")
        return 1
    first = min(map(started, suites.values()))
    print(
        "| Tier | Seconds | Ended | Processor | Tests | Skipped | Failed |\n| --- | --: | --: | --: | --: | --: | --: |"
    )
    for tier, suite in suites.items():
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        seconds, processor = float(suite.get("time", 0)), sum(map(processor_seconds, suite.iter("testcase")))
        figures = (seconds, started(suite) - first + seconds, processor)
        shown = [f"{figure:.0f}" for figure in figures]
        print(f"| {tier} | {' | '.join(map(str, [*shown, suite.get('tests'), suite.get('skipped')]))} | {failed} |")
    print_processors(folder / "stat.before", folder / "stat.after")
    if chosen.slowest:
        print_slowest(suites, chosen.slowest)
    return 0


def print_slowest(suites: dict[str, ET.Element], most: int) -> None:
    """Print the slowest tests of all tiers."""
    cases = [
        (float(case.get("time", 0)), tier, case) for tier, suite in suites.items() for case in suite.iter("testcase")
    ]
    print("\n| Seconds | Processor | Tier | Test |\n| ---: | ---: | --- | --- |")
    for seconds, tier, case in sorted(cases, key=lambda each: -each[0])[:most]:
        path = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        print(f"| {seconds:.0f} | {processor_seconds(case):.0f} | {tier} | `{path}` {case.get('name')} |")


def started(suite: ET.Element) -> float:
    """Return when the tests of a tier started, unix seconds."""
    return datetime.fromisoformat(suite.get("timestamp", "1970-01-01T00:00:00+00:00")).timestamp()


def print_processors(before: Path, after: Path) -> None:
    """Print what all processors did between two copies of `/proc/stat`; nothing where there are none."""
    if not (before.exists() and after.exists()):
        return
    then, now = map(processor_times, (before, after))
    passed = [late - early for early, late in zip(then, now, strict=True)]
    user, nice, system, idle, waiting, hard, soft, stolen = passed
    busy = user + nice + system + hard + soft
    share = 100 / max(1, busy + idle + waiting + stolen)
    parts = f"busy {busy * share:.0f} %, idle {idle * share:.0f} %, waiting for a disk {waiting * share:.0f} %"
    print(f"\nProcessors: {parts}, taken by other virtual machines {stolen * share:.0f} %.")


def processor_times(stat: Path) -> list[int]:
    """Return the eight times of all processors together, in ticks, of a copy of `/proc/stat` (see proc(5))."""
    return list(map(int, stat.read_text().split("\n", 1)[0].split()[1:9]))


def processor_seconds(case: ET.Element) -> float:
    """Return the seconds of a processor that a test took, 0 where it was skipped."""
    found = case.find("properties/property[@name='processor']")
    return 0 if found is None else float(found.get("value", 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
