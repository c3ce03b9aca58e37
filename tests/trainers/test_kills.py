"""kill -9 at random points of a run, wherever they are: it goes on with the bits of an undisturbed run."""

import os
import random
import shutil

import pytest
from tests.trainers.test_lm_equality import settings
from tests.trainers.test_lm_methods import of_method
from tests.trainers.test_vla_equality import settings as vla
from tests.trainers.test_vlm_equality import settings as vlm

pytestmark = pytest.mark.e2e

WORLD, SEED = 2, 7
NOBODY = -1
LITTLE = {
    "trainer": {"name": "little"},
    "device": "cpu",
    "logging": {"tensorboard": False},
    "checkpoint": {"interval": {"steps": 3}},
}
EVERY_STEP = {"checkpoint": {"interval": {"steps": 1}}}
AVERAGED = {"ema": 0.9, "batch": 3, "draws": 1, "evalEpisodes": 2, "evalSamples": 2, "evalEvery": 6}


@pytest.mark.parametrize(
    "case",
    [
        (LITTLE, {"steps": 60, "batch": 6}, 20),
        (settings(8, **EVERY_STEP), None, 3),
        (of_method("grpo", 8, parallelism={"strategy": "fsdp"}, **EVERY_STEP), None, 3),
        (vla(6, params=AVERAGED, parallelism={"strategy": "fsdp"}, **EVERY_STEP), None, 2),
        (vlm(params={"evalEpisodes": 2, "evalEvery": 2}, **EVERY_STEP), None, 3),
    ],
    ids=["little", "sft", "grpo", "vla", "vlm"],
)
def test_killed_at_random_points_a_run_ends_with_the_same_bits(yard, calm, tmp_path, case):
    """KILLS=20 kills each of them that often."""
    run, sizes, kills = case
    told = tmp_path / "told"

    def train(victim, number):
        return {"function": ("kills:train", [sizes, victim, number, str(told)])}

    calm.train(run, WORLD, **train(0, 0))
    calls, expected = int(told.read_text()), calm.losses()

    draw, points = random.Random(SEED), []
    while len(points) < int(os.environ.get("KILLS", kills)):
        # A start and a few steps, so that much of the run is left after most kills.
        victim, number = draw.randrange(WORLD), draw.randint(1, calls // min(kills, 7))
        gang = yard.start(run, WORLD, **train(victim, number))
        (code,) = yard.server.ask({"wait": [gang.pids[victim]], "seconds": 900})["codes"]
        if code == 0:  # not much was left: begin again
            assert gang.wait() == [0] * WORLD, gang.output()
            assert (yard.losses(), yard.weights()) == (expected, calm.weights()), f"killed at {points}"
            shutil.rmtree(yard.checkpoints)
            continue
        gang.kill()  # as a launcher ends what is left of a round
        gang.wait()
        assert code == -9, gang.output()
        points.append(f"call {number} of rank {victim}: {told.read_text()}")
        known = yard.losses() if (yard.checkpoints / "metrics.jsonl").exists() else {}
        wrong = [step for step, loss in known.items() if loss != expected[step]]
        assert not wrong, f"step {wrong[0]} is not what it was; killed before at {points}"
    yard.train(run, WORLD, **train(NOBODY, 0))
    assert yard.losses() == expected, f"killed at {points}"
    assert yard.weights() == calm.weights(), f"killed at {points}"
