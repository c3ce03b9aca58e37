"""kill -9 at random points of a run, wherever they are: it goes on with the bits of a run that nobody disturbed."""

import random

import pytest

pytestmark = pytest.mark.e2e

KILLS, WORLD, SEED = 20, 2, 7
SIZES = {"steps": 60, "batch": 6}
SETTINGS = {
    "trainer": {"name": "little"},
    "device": "cpu",
    "logging": {"tensorboard": False},
    "checkpoint": {"interval": {"steps": 3}},
}


def test_killed_at_twenty_random_points_a_run_ends_with_the_same_bits(yard, calm, tmp_path):
    told = tmp_path / "told"

    def train(victim, number):
        return {"function": ("kills:train", [SIZES, victim, number, str(told)])}

    calm.train(SETTINGS, WORLD, **train(0, 0))
    calls, expected = int(told.read_text()), calm.losses()

    draw, points = random.Random(SEED), []
    for _ in range(KILLS):
        # A start and a few steps, so that much of the run is left after the last kill.
        victim, number = draw.randrange(WORLD), draw.randint(1, calls // 7)
        gang = yard.start(SETTINGS, WORLD, **train(victim, number))
        (code,) = yard.server.ask({"wait": [gang.pids[victim]], "seconds": 60})["codes"]
        gang.kill()  # as a launcher ends what is left of a round
        gang.wait()
        assert code == -9, gang.output()
        points.append(f"call {number} of rank {victim}: {told.read_text()}")
        known = yard.losses() if (yard.checkpoints / "metrics.jsonl").exists() else {}
        wrong = [step for step, loss in known.items() if loss != expected[step]]
        assert not wrong, f"step {wrong[0]} is not what it was; killed before at {points}"
    yard.train(SETTINGS, WORLD, **train(0, 0))
    assert yard.losses() == expected, f"killed at {points}"
    assert yard.weights() == calm.weights(), f"killed at {points}"
