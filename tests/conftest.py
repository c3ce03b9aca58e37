"""For every test: no judgement by the clock, and a line at the end for whatever could not run here."""

from collections import Counter

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.support")  # a failed assertion in there shows its values, too
settings.register_profile("torchyard", deadline=None)  # a busy machine is no defect
settings.load_profile("torchyard")


def pytest_ignore_collect(collection_path, config):
    """Where only end-to-end tests run, do not import files that have none: their tables take seconds to build."""
    if config.option.markexpr != "e2e" or collection_path.suffix != ".py" or collection_path.name == "conftest.py":
        return None
    return "pytest.mark.e2e" not in collection_path.read_text(encoding="utf-8") or None


def pytest_terminal_summary(terminalreporter):
    """Print what was skipped, one line for each thing that is missing; the reasons say how to get it."""
    reports = terminalreporter.stats.get("skipped", ())
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if reasons:
        terminalreporter.section("not run on this machine")
    for reason, number in reasons.most_common():
        terminalreporter.line(f"{number} {'test' if number == 1 else 'tests'}: {reason}")
