"""World size, strategy and accumulation never change the mathematics; a kill never changes a bit."""

import re
import shutil

import pytest
from compiled_code import COMPILED_CODE
from tests.support.trainers.compilers import needs_compiler
from tests.support.trainers.gangs import Yard, config, until

pytestmark = pytest.mark.e2e

# As many instances in a step, an evaluation and a test of the baseline: where it is compiled, they share the code.
ROLLOUT = {"baseline": "rollout", "model": "gt", "batch": 48, "evalInstances": 48, "baselineInstances": 48}


def at_most(step: int, params=None, **sections):
    """Stop after `step` steps of a run of 12, as an undisturbed run would have gone: the schedule stays that of 12."""
    return config(params={"lrFinal": 1e-3, "steps": step, **(params or {})}, **sections)


@pytest.fixture(scope="module")
def undisturbed(fork_server, tmp_path_factory):
    """Losses of one process, nothing accumulated, never stopped."""
    losses = {}
    for name, params in {"shared": {}, "rollout": ROLLOUT}.items():
        yard = Yard(fork_server, tmp_path_factory.mktemp(name))
        yard.train(config(params={"lrFinal": 1e-3, **params}))
        losses[name] = yard.losses()
    return losses


def assert_same(losses, expected):
    assert losses.keys() == expected.keys()
    assert losses == pytest.approx(expected, abs=1e-5)


def test_one_two_and_three_processes_resume_each_other(yard, undisturbed):
    yard.train(at_most(4))
    yard.train(at_most(8), world=2)
    yard.train(at_most(12), world=3)
    assert_same(yard.losses(), undisturbed["shared"])
    assert [yard.record(step)["world"] for step in (4, 8, 12)] == [1, 2, 3]


def test_ddp_fsdp_and_single_resume_each_other(yard, undisturbed):
    yard.train(at_most(4, parallelism={"strategy": "ddp"}), world=2)
    yard.train(at_most(8, parallelism={"strategy": "fsdp"}), world=2)
    yard.train(at_most(12, parallelism={"strategy": "single"}))
    assert_same(yard.losses(), undisturbed["shared"])
    assert [yard.record(step)["strategy"] for step in (4, 8, 12)] == ["ddp", "fsdp", "single"]


def test_accumulating_in_four_micro_batches_is_the_same_step(yard, undisturbed):
    yard.train(at_most(6))
    yard.train(at_most(12, parallelism={"microBatchSize": 3}))
    assert_same(yard.losses(), undisturbed["shared"])


def test_a_micro_batch_learned_by_an_earlier_round_is_the_same_step(yard, undisturbed):
    yard.train(at_most(6), world=2)
    yard.train(at_most(12), world=2, env={"TORCHYARD_MICRO_BATCH": "2"})
    assert_same(yard.losses(), undisturbed["shared"])


def test_a_world_that_does_not_divide_the_batch_is_the_same_run(yard, undisturbed):
    yard.train(at_most(12, parallelism={"microBatchSize": 2, "strategy": "fsdp"}), world=5)
    assert_same(yard.losses(), undisturbed["shared"])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_rollout_baseline_comes_to_the_same_verdict_at_any_size(yard, undisturbed, strategy):
    parallelism = {"strategy": strategy, "microBatchSize": 10}
    yard.train(at_most(5, ROLLOUT, parallelism=parallelism), 2)
    yard.train(at_most(12, ROLLOUT, parallelism=parallelism), 3)
    assert_same(yard.losses(), undisturbed["rollout"])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_training_continues_during_a_save_that_a_kill_then_loses(yard, undisturbed, strategy):
    def settings(interval):
        return at_most(12, parallelism={"strategy": strategy}, checkpoint={"interval": {"steps": interval}})

    folder = re.escape(str(yard.checkpoints))
    gang = yard.start(settings(5), 2, hold=(0, rf"os.rename {folder}/\.step-00000005\."))
    until(yard.held.exists)
    until(lambda: yard.report()["step"] == 10)  # where the next save waits for this one
    assert yard.committed() == []
    gang.kill(0)
    assert gang.wait() == [-9, 76], gang.output()
    yard.train(settings(12), 2)
    assert_same(yard.losses(), undisturbed["shared"])
    assert yard.committed() == [12]


@pytest.mark.parametrize(("strategy", "world"), [("single", 1), ("ddp", 3), ("fsdp", 2)])
def test_killed_inside_a_save_a_run_ends_with_the_same_bits(yard, calm, strategy, world):
    settings = config(
        params={"steps": 16, "baseline": "rollout", "batch": 24},
        parallelism={"strategy": strategy},
        checkpoint={"interval": {"steps": 3}},
    )
    calm.train(settings, world)
    folder = re.escape(str(yard.checkpoints))
    last = world - 1
    for victim, moment, durable in (
        (last, rf"open {folder}/\.step-00000006\..*/dcp/__{last}_", [3]),  # about to write its own shards
        (0, rf"open {folder}/\.latest", [3, 6]),  # the checkpoint was published a moment ago
        (0, rf"os.rename {folder}/\.step-00000009\.", [3, 6]),  # all is written, but it does not exist yet
    ):
        gang = yard.start(settings, world, hold=(victim, moment))
        until(yard.held.exists)
        assert yard.committed() == durable
        gang.kill(victim)
        codes = gang.wait()
        assert codes[victim] == -9
        assert all(code == 76 for rank, code in enumerate(codes) if rank != victim), gang.output()
    yard.train(settings, world)
    assert yard.weights() == calm.weights()


@needs_compiler
@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_compiled_blocks_resume_with_the_same_bits(yard, calm, undisturbed, strategy):
    parallelism = {"strategy": strategy, "compile": True, "activationCheckpointing": "selective"}
    # Evaluated instances, as many as there are in a step, share its code.
    baseline, params = {"fsdp": ("shared", {"evalInstances": 12}), "ddp": ("rollout", ROLLOUT)}[strategy]
    settings = at_most(12, params, parallelism=parallelism, checkpoint={"interval": {"steps": 5}})
    compiler = {"TORCHINDUCTOR_CACHE_DIR": str(COMPILED_CODE)}
    calm.train(settings, 2, env=compiler)
    assert_same(calm.losses(), undisturbed[baseline])
    # As if it had been killed after its first checkpoint: to compile once more takes longer than to train.
    shutil.copytree(calm.checkpoints / "step-00000005", yard.checkpoints / "step-00000005")
    yard.train(settings, 2, env=compiler)
    assert min(yard.losses()) == 6
    assert yard.weights() == calm.weights()
