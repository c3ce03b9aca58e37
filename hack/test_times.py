"""Print where the time of a test run went, as Markdown: `python hack/test_times.py build/times`.

Each tier leaves a JUnit file there. Seconds of a tier are of the clock; those of a test count its fixtures, too.
Seconds of a processor are those of the test's process and its descendants, without nodes of a cluster.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

TIERS = ("unit", "e2e", "cluster", "alone", "learning")
SLOWEST = 30


def main(folder: Path) -> int:
    """Print a table of tiers and one of the slowest tests."""
    suites = {tier: ET.parse(file).getroot()[0] for tier in TIERS if (file := folder / f"{tier}.xml").exists()}
    if not suites:
        sys.stderr.write(f"no times in {folder}: run `make test` or one of its tiers first\n")
        return 1
    print("| Tier | Seconds | Processor | Tests | Skipped | Failed |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for tier, suite in suites.items():
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        processor = sum(map(processor_seconds, suite.iter("testcase")))
        figures = (f"{float(suite.get('time', 0)):.0f}", f"{processor:.0f}", suite.get("tests"), suite.get("skipped"))
        print(f"| {tier} | {' | '.join(map(str, figures))} | {failed} |")
    cases = [
        (float(case.get("time", 0)), tier, case) for tier, suite in suites.items() for case in suite.iter("testcase")
    ]
    print("\n| Seconds | Processor | Tier | Test |\n| ---: | ---: | --- | --- |")
    for seconds, tier, case in sorted(cases, key=lambda each: -each[0])[:SLOWEST]:
        path = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        print(f"| {seconds:.0f} | {processor_seconds(case):.0f} | {tier} | `{path}` {case.get('name')} |")
    return 0


def processor_seconds(case: ET.Element) -> float:
    """Return the seconds of a processor that a test took, 0 where it was skipped."""
    found = case.find("properties/property[@name='processor']")
    return 0 if found is None else float(found.get("value", 0))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
