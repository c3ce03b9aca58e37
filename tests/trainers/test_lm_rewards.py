"""Rewards by users' functions: what they return, and every way in which they can fail."""

import os
import signal

import pytest

from torchyard_trainers.core.exits import ConfigError, exit_code
from torchyard_trainers.lm.functions.rewards import RewardError, Rewards

pytestmark = pytest.mark.usefixtures("modules")
THREE = (["p", "q", "r"], ["", "x", "xyz"], [{"bonus": 0.5}, {"bonus": 0}, {"bonus": 1}])


@pytest.fixture
def modules(monkeypatch):
    """Workers find the modules of users on PYTHONPATH."""
    folder = os.path.join(os.path.dirname(__file__), "..", "support", "worker_modules")  # noqa: PTH118, PTH120
    monkeypatch.setenv("PYTHONPATH", os.path.abspath(folder))  # noqa: PTH100


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_each_completion_has_the_reward_that_the_function_returns(workers, capfd):
    with Rewards("reward_functions:length", workers=workers) as rewards:
        assert rewards(*THREE) == [0.5, 1.0, 4.0]
        assert rewards(*THREE) == [0.5, 1.0, 4.0]
        assert rewards([], [], []) == []
    assert "a function may print" in capfd.readouterr().err


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("of_another_trainer", [1.0, 1.0, 1.0]),
        ("at_the_same_time", [1.0, 1.0, 1.0]),
        ("of_a_column", [0.5, 1.0, 4.0]),
        ("of_all_columns", [2.0, 2.0, 2.0]),
        ("of_an_unused_prompt", [0.0, 1.0, 3.0]),
        ("by_position", [0.5, 0.0, 1.0]),
    ],
)
def test_parameters_are_columns_by_name_as_in_trl(function, expected, workers):
    rows = [{"bonus": 0.5, "level": "a"}, {"bonus": 0}, {"bonus": 1}]
    with Rewards(f"reward_functions:{function}", workers=workers) as rewards:
        assert rewards(*THREE[:2], rows) == expected


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("of_no_column", r"has the parameter 'solution', which is no column .*; their columns are 'bonus'"),
        ("of_trl_only", "of_trl_only has the parameter 'completion_ids', which only TRL has"),
    ],
)
def test_a_parameter_that_no_column_has_is_an_error_of_the_configuration(function, message):
    with Rewards(f"reward_functions:{function}") as rewards, pytest.raises(ConfigError, match=message):
        rewards(*THREE)


def test_the_function_runs_in_processes_that_end_with_the_rewards():
    with Rewards("reward_functions:process", workers=2) as rewards:
        found = {int(each) for each in rewards(*THREE)}
        assert len(found) == 2
        assert os.getpid() not in found
    for process in found:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("fail", "reward_functions:fail failed: KeyError: 'answer' at .*reward_functions.py:"),
        ("crash", "the process of reward_functions:crash was ended by signal 6"),
        ("too_few", "must return a list of 3 numbers, one for each completion, and returned 1 of them"),
        ("nothing", "must return a list of 3 numbers, one for each completion, and returned None"),
        ("not_finite", "reward_functions:not_finite returned nan for the completion 'xyz'"),
        ("beyond_floats", r"returned 10+… for the completion ''; return a finite number"),
        ("leave", "the process of reward_functions:leave ended with exit code 0"),
        ("leave_a_child_behind", "the process of reward_functions:leave_a_child_behind ended with exit code 3"),
        ("too_many", "too_many answered with a message of more than 65728 bytes. Return a list of finite numbers"),
        ("write_a_length", "write_a_length answered with a message of more than 65728 bytes"),
        ("write_a_number", "write_a_number answered with a message without a kind and a value"),
        ("say_much", "^.{4096,4400}$"),
    ],
)
def test_the_error_for_a_reward_function_that_fails_names_it_and_the_cause(function, message):
    with Rewards(f"reward_functions:{function}") as rewards, pytest.raises(RewardError, match=message):
        rewards(*THREE)


def test_a_function_that_forks_answers_once_and_leaves_nothing_behind(tmp_path):
    with Rewards("reward_functions:return_twice") as rewards:
        assert rewards(*THREE) == rewards(*THREE)
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with Rewards("reward_functions:start_a_child") as rewards:
        rewards(["p"], ["c"], [{"pipe": str(tmp_path / "pipe")}])
    os.set_blocking(pipe, True)
    assert os.read(pipe, 1) == b""  # waits until no process has it open
    os.close(pipe)


def test_a_process_that_no_longer_runs_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("torchyard_trainers.lm.functions.rewards.GRACE_SECONDS", 0.2)
    with Rewards("reward_functions:process", seconds=0.2) as rewards:
        os.kill(rewards._workers[0].process.pid, signal.SIGSTOP)  # a call would have to be answered in time
        with pytest.raises(RewardError, match=r"took no completions within 0\.2 s: it does not run"):
            rewards(["p"], ["c" * 4_000_000], [{}])


def test_a_function_that_hangs_is_ended_at_the_limit_and_the_error_says_where_it_was():
    with Rewards("reward_functions:hang", seconds=1.0) as rewards:
        with pytest.raises(RewardError, match=r"hang did not return rewards of 3 completions within 1 s") as caught:
            rewards(*THREE)
        assert "it was at File" in str(caught.value)
        assert "threading.py" in str(caught.value)
        assert "raise trainer.params.rewardSeconds" in str(caught.value)
        assert exit_code(caught.value) == 1


def test_a_coroutine_that_waits_is_ended_at_the_limit_and_the_error_says_where_it_was():
    with Rewards("reward_functions:wait", seconds=0.5) as rewards:
        with pytest.raises(RewardError, match=r"wait did not return rewards of 3 completions within 0.5 s") as caught:
            rewards(*THREE)
        assert "it was at" in str(caught.value)
        assert "reward_functions.py" in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_such_module:f", "there is no module 'no_such_module'; set workingDir"),
        ("reward_functions:no_such_function", "reward_functions has no function 'no_such_function'"),
        ("reward_functions:of_two", r"in reward_functions, of_two\(text, reply\) is called as of_two\(prompts, comp"),
    ],
)
def test_a_function_that_does_not_exist_is_an_error_of_the_configuration(function, message):
    with pytest.raises(ConfigError, match=message):
        Rewards(function)


def test_the_error_for_a_module_that_cannot_be_imported_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_rewards.py").write_text("1 / 0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RewardError, match=r"cannot be imported: ZeroDivisionError: .* at .*broken_rewards.py:1"):
        Rewards("broken_rewards:f")
