"""A process goes by the name of what it does, and not by the command line of the process it was forked from."""

import subprocess
import sys

import pytest

SHOW = "print(open('/proc/self/comm').read().strip(), open('/proc/self/cmdline').read().rstrip('\\0').split('\\0'))"


def shown(act: str, *words: str) -> str:
    """What a process is listed as after it did `act`."""
    program = f"from torchyard_agent.workers.titles import name_process\n{act}\n{SHOW}"
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True).stdout


def test_a_process_is_listed_with_the_name_and_the_command_line_it_gives_itself() -> None:
    found = shown("name_process('ty-rank-3', ['python', '-u', 'train.py', '--lr', '1'])")
    assert found == "ty-rank-3 ['python', '-u', 'train.py', '--lr', '1']\n"


def test_a_name_or_command_line_that_does_not_fit_is_truncated() -> None:
    found = shown("name_process('a name that is too long', ['x' * 100_000])", "a", "b")
    name, _, line = found.partition(" ['")
    assert name == "a name that is"
    assert 50 < len(line) < 1000
    assert set(line) == set("x']\n")


@pytest.mark.parametrize("words", ["['ü']", "[]", "['']"])
def test_any_command_line_can_be_shown(words: str) -> None:
    assert shown(f"name_process('ty', {words})").startswith("ty ")


def test_arguments_of_the_program_are_not_touched() -> None:
    found = shown("import sys\nname_process('ty', ['x'])\nprint(sys.argv[1:], sys.orig_argv[-2:])", "one", "two")
    assert found.splitlines()[0] == "['one', 'two'] ['one', 'two']"
