"""For every test: no judgement by the clock, and a line at the end for whatever could not run here."""

import atexit
import contextlib
import gc
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.support")  # a failed assertion in there shows its values, too
settings.register_profile("torchyard", deadline=None)  # a busy machine is no defect
settings.load_profile("torchyard")
gc.disable()  # until all tests are collected
# Tests start Python by the hundred: without bytecode each process compiles half of PyTorch again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
BEFORE = pytest.StashKey[tuple[float, float]]()
UNIT = "not e2e and not learning and not cluster"  # as `make test-unit` says it
E2E, ALL_E2E = "pytest.mark.e2e", "\npytestmark = pytest.mark.e2e\n"
NO_UNIT = [Path(__file__).with_name(name) for name in ("cluster", "learning")]  # a conftest.py marks all tests there


def pytest_configure(config):
    """End xdist's processes at once: to take all modules apart, an interpreter needs seconds.

    A process without xdist ends as usual, but with no object exempt from collections: some libraries would write that
    those were leaked.
    """
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)
    else:
        atexit.register(gc.unfreeze)


def pytest_ignore_collect(collection_path, config):
    """Do not import files of which a tier runs nothing: their imports and tables take seconds in each process."""
    marks = config.option.markexpr
    if marks == UNIT and collection_path in NO_UNIT:
        return True
    if marks not in {UNIT, "e2e"} or collection_path.suffix != ".py" or collection_path.name == "conftest.py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    nothing = ALL_E2E in text if marks == UNIT else E2E not in text
    return nothing or None


def pytest_collection_finish():
    """Exempt all tests and imported modules from garbage collections, which would walk them again and again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """Return a folder for `cache` below TORCHYARD_HOME: the agent is built once, and templates know it by its path."""
    return tmp_path_factory.mktemp("cache")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    """Note the processor time, and that of the clock, before a test and its fixtures."""
    item.stash[BEFORE] = processor_seconds_of(item), time.perf_counter()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that starts jobs in the environment in which pytest was started."""
    with of_templates().without_pytest() if starts_jobs(pyfuncitem) else contextlib.nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    """Record the processor time of a test in the JUnit file, for `make test-times`."""
    try:
        return (yield)
    finally:
        processor, clock = item.stash[BEFORE]
        # Less than before where a process went its own way. A list of children that is read while one of them ends may
        # lack others: what they took in all their life would be the next test's.
        most = (time.perf_counter() - clock) * os.cpu_count()
        taken = min(max(0.0, processor_seconds_of(item) - processor), most)
        item.user_properties.append(("processor", f"{taken:.2f}"))


def starts_jobs(item):
    """Return whether a test is one of the end-to-end tier."""
    return item.get_closest_marker("e2e") is not None


def of_templates():
    """Return the module, whose assertions are rewritten only since it is imported no sooner."""
    from tests.support import shared_templates

    return shared_templates


def processor_seconds_of(item):
    """Return the seconds of this process, its descendants and, where there may be some, the templates of its jobs."""
    return processor_seconds() + sum(
        map(processor_seconds, of_templates().template_pids() if starts_jobs(item) else ())
    )


def processor_seconds(pid="self"):
    """Return the seconds that a process and all its descendants have spent on a processor, 0 for one that has ended.

    Linux adds the time of a child to that of its parent when the parent waits for it; servers that several tests share
    run on, so their time is read where it is.
    """
    process = Path("/proc", str(pid))
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        children = [child for task in (process / "task").iterdir() for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(map(processor_seconds, children))


def pytest_terminal_summary(terminalreporter):
    """Print what was skipped, one line for each thing that is missing; the reasons say how to get it."""
    reports = terminalreporter.stats.get("skipped", ())
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if reasons:
        terminalreporter.section("not run on this machine")
    for reason, number in reasons.most_common():
        terminalreporter.line(f"{number} {'test' if number == 1 else 'tests'}: {reason}")
