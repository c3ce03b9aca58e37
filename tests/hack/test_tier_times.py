"""What `make test` prints at its end about the time that its tiers took."""

from pathlib import Path

import pytest
from hack import test_times

SUITE = """<testsuites><testsuite timestamp="2026-01-01T00:00:{start:02}+00:00" time="{seconds}" tests="2" skipped="0"
 failures="1" errors="0"><testcase classname="tests.{tier}.test_a" name="one" time="4.0"><properties>
<property name="processor" value="3.0"/></properties></testcase></testsuite></testsuites>"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for tier, start, seconds in (("unit", 7, 20), ("learning", 2, 50)):
        (tmp_path / f"{tier}.xml").write_text(SUITE.format(tier=tier, start=start, seconds=seconds))
    return tmp_path


def test_the_end_of_a_tier_is_counted_from_the_start_of_the_first(folder, capsys):
    assert test_times.main([str(folder), "--slowest", "0"]) == 0
    printed = capsys.readouterr().out
    assert "| unit | 20 | 25 | 3 | 2 | 0 | 1 |" in printed
    assert "| learning | 50 | 50 | 3 | 2 | 0 | 1 |" in printed
    assert "`unit/test_a` one" not in printed
    assert "Processors" not in printed


def test_the_slowest_tests_are_listed(folder, capsys):
    assert test_times.main([str(folder), "--slowest", "1"]) == 0
    assert capsys.readouterr().out.count("test_a` one |") == 1


def test_what_the_processors_did_is_the_difference_between_start_and_end(folder, capsys):
    for name, user, idle, stolen in (("before", 100, 100, 7), ("after", 700, 350, 157)):
        (folder / f"stat.{name}").write_text(f"cpu  {user} 0 0 {idle} 0 0 0 {stolen} 0 0\ncpu0 1 2 3\n")
    assert test_times.main([str(folder), "--slowest", "0"]) == 0
    said = "Processors: busy 60 %, idle 25 %, waiting for a disk 0 %, taken by other virtual machines 15 %."
    assert said in capsys.readouterr().out


def test_without_a_run_it_says_what_to_do(tmp_path, capsys):
    assert test_times.main([str(tmp_path)]) == 1
    assert "run `make test`" in capsys.readouterr().err
