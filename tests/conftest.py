"""For every test: no judgement by the clock, and a line at the end for whatever could not run here."""

import gc
import resource
from collections import Counter

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.support")  # a failed assertion in there shows its values, too
settings.register_profile("torchyard", deadline=None)  # a busy machine is no defect
settings.load_profile("torchyard")
BEFORE = pytest.StashKey[float]()


def pytest_ignore_collect(collection_path, config):
    """Where only end-to-end tests run, do not import files that have none: their tables take seconds to build."""
    if config.option.markexpr != "e2e" or collection_path.suffix != ".py" or collection_path.name == "conftest.py":
        return None
    return "pytest.mark.e2e" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_finish():
    """Exempt all tests and imported modules from garbage collections, which would walk them again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    """Note the processor time before a test and its fixtures."""
    item.stash[BEFORE] = processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    """Record the processor time of a test in the JUnit file, for `make test-times`."""
    try:
        return (yield)
    finally:
        item.user_properties.append(("processor", f"{processor_seconds() - item.stash[BEFORE]:.2f}"))


def processor_seconds():
    """Return the seconds that this process and its children that ended have spent on a processor."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def pytest_terminal_summary(terminalreporter):
    """Print what was skipped, one line for each thing that is missing; the reasons say how to get it."""
    reports = terminalreporter.stats.get("skipped", ())
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if reasons:
        terminalreporter.section("not run on this machine")
    for reason, number in reasons.most_common():
        terminalreporter.line(f"{number} {'test' if number == 1 else 'tests'}: {reason}")
