"""kill -9 at every step of a save: what was there before is still whole, or what was being saved is."""

import shutil
import signal

import pytest
import torch
from saves import owner, save

from torchyard_trainers.core.checkpoints import commits

pytestmark = pytest.mark.e2e


def restored(root, round_number):
    """What a new round finds."""
    checkpoints = owner(root, round_number)
    state = {"weights": torch.zeros(64), "bias": torch.zeros(3)}
    found = checkpoints.restore(lambda shards, folder: shards.load(state, folder))
    checkpoints.sweep()
    return found, state


@pytest.fixture(scope="module")
def one_checkpoint(tmp_path_factory):
    root = tmp_path_factory.mktemp("one") / "checkpoints"
    save(root, 1, 1)
    return root


def test_a_kill_at_any_step_of_a_save_never_loses_the_checkpoint_before(fork_server, tmp_path, one_checkpoint):
    steps_found = []
    for number in range(200):
        root = tmp_path / str(number)
        shutil.copytree(one_checkpoint, root)
        worker = {"env": {}, "log": str(tmp_path / "log"), "function": "saves:save_and_die"}
        pids = fork_server.ask({"start": [{**worker, "arguments": [str(root), number]}]})["pids"]
        (code,) = fork_server.ask({"wait": pids, "seconds": 60})["codes"]
        if code == 0:
            break
        assert code == -signal.SIGKILL, (tmp_path / "log").read_text()
        found, state = restored(root, 2)
        step = found.record["step"]
        assert (state["weights"] == step).all()
        assert (state["bias"] == step).all()
        steps_found.append(step)
        left = {path.name for path in root.iterdir() if path.is_dir()}
        assert left <= {"step-00000001", "step-00000002"}, "what the kill left is swept away"
        save(root, 3, 2)
        assert [candidate.step for candidate in commits.candidates(root)] == [3], "and the run goes on as ever"
        shutil.rmtree(root)
    else:
        pytest.fail("the save never came to its end")
    # Old until one moment, new from then on; and the walk saw shards, COMMIT, rename, `latest` and the retention.
    assert steps_found == sorted(steps_found)
    assert steps_found.count(1) >= 10
    assert steps_found.count(2) >= 5
