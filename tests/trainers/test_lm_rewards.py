"""Rewards by users' functions: what they return, and every way in which they can fail."""

import os

import pytest

from torchyard_trainers.core.exits import ConfigError, exit_code
from torchyard_trainers.lm.rewards import RewardError, Rewards

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
    ],
)
def test_a_function_that_fails_is_named_with_what_it_did(function, message):
    with Rewards(f"reward_functions:{function}") as rewards, pytest.raises(RewardError, match=message):
        rewards(*THREE)


def test_a_function_that_hangs_is_ended_at_the_limit_and_the_error_says_where_it_was():
    with Rewards("reward_functions:hang", seconds=0.2) as rewards:
        with pytest.raises(RewardError, match=r"hang did not return rewards of 3 completions within 0\.2 s") as caught:
            rewards(*THREE)
        assert "it was at File" in str(caught.value)
        assert "threading.py" in str(caught.value)
        assert "raise trainer.params.rewardSeconds" in str(caught.value)
        assert exit_code(caught.value) == 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_such_module:f", "there is no module 'no_such_module'; set workingDir"),
        ("reward_functions:no_such_function", "reward_functions has no function 'no_such_function'"),
    ],
)
def test_a_function_that_does_not_exist_is_an_error_of_the_configuration(function, message):
    with pytest.raises(ConfigError, match=message):
        Rewards(function)


def test_a_module_that_cannot_be_imported_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_rewards.py").write_text("1 / 0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RewardError, match=r"cannot be imported: ZeroDivisionError: .* at .*broken_rewards.py:1"):
        Rewards("broken_rewards:f")
