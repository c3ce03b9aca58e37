"""What `plan` tells before a job is started is what its step then takes."""

import little_lm
import pytest

from torchyard_trainers.core.config import Config, Parallelism, Trainer, convert
from torchyard_trainers.core.forecast import GIB, forecast, imagined_world, room_on
from torchyard_trainers.core.plan import Planner, _difference

SIZES = {"width": 64, "heads": 4, "layers": 2, "vocabulary": 200, "length": 48, "batch": 32}


def told(strategy, shape, options):
    settings = convert(options, Parallelism, at="parallelism")
    with imagined_world(*shape) as world:
        return forecast(
            little_lm.LittleLm(little_lm.Sizes(**SIZES)),
            world,
            strategy,
            settings=settings,
            precision=settings.precision,
            micro_batch=settings.micro_batch_size,
            real=False,
        )


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("strategy", "world", "nodes", "options"),
    [
        ("single", 1, 1, {"precision": "fp32", "microBatchSize": 32}),
        ("single", 1, 1, {"precision": "bf16", "microBatchSize": 8, "activationCheckpointing": "full"}),
        ("ddp", 2, 1, {"precision": "fp32", "microBatchSize": 8, "activationCheckpointing": "selective"}),
        ("fsdp", 2, 1, {"precision": "bf16", "microBatchSize": 16}),
        ("fsdp", 2, 2, {"precision": "fp32", "microBatchSize": 4, "activationCheckpointing": "full"}),
        ("hsdp", 4, 2, {"precision": "bf16", "microBatchSize": 8}),
    ],
)
def test_the_forecast_is_within_a_tenth_of_what_a_real_step_takes(yard, strategy, world, nodes, options):
    file = yard.root / "peak"
    gang = yard.start({}, world, nodes=nodes, function=("little_lm:measure", [SIZES, strategy, options, str(file)]))
    assert gang.wait() == [0] * world, gang.output()
    usage = told(strategy, (world, world // nodes), options)
    assert usage.total == pytest.approx(int(file.read_text()), rel=0.1)


def test_sharding_divides_what_lasts_and_checkpointing_what_passes():
    plain = {"precision": "fp32", "microBatchSize": 8}
    whole, sharded = told("ddp", (4, 2), plain), told("fsdp", (4, 2), plain)
    nodes, offloaded = told("hsdp", (4, 2), plain), told("fsdp", (4, 2), {**plain, "cpuOffload": True})
    assert sharded.parameters == pytest.approx(whole.parameters / 4, rel=0.05)
    assert nodes.optimizer == pytest.approx(whole.optimizer / 2, rel=0.05)
    assert offloaded.total < sharded.total - sharded.optimizer
    assert offloaded.host >= sharded.optimizer
    recomputed = told("ddp", (4, 2), {**plain, "activationCheckpointing": "full"})
    assert recomputed.activations < 0.7 * whole.activations
    assert recomputed.optimizer == whole.optimizer


def test_sharding_gradients_alone_keeps_parameters_gathered_and_is_what_resharding_after_forward_turns_off():
    plain = {"precision": "fp32", "microBatchSize": 1}
    full, grad, spelt = (
        told("fsdp", (4, 2), {**plain, "fsdp": options})
        for options in ({}, {"sharding": "grad"}, {"reshardAfterForward": False})
    )
    assert grad == spelt
    assert (grad.parameters, grad.optimizer) == (full.parameters, full.optimizer)
    block = 12 * 64 * 64 * 4  # bytes of its matrices; there are two, of which full keeps one at a time
    assert grad.buffers - full.buffers == pytest.approx(block, rel=0.1)


def test_the_first_change_for_gathered_parameters_is_to_free_them(monkeypatch):
    sizes = little_lm.Sizes(width=32, layers=4, vocabulary=32, length=4, batch=4)
    monkeypatch.setattr("torchyard_trainers.registry.build", lambda _: little_lm.LittleLm(sizes))
    options = {"strategy": "fsdp", "precision": "fp32", "microBatchSize": 1, "fsdp": {"sharding": "grad"}}
    settings = convert({**options, "activationCheckpointing": "full"}, Parallelism, at="parallelism")
    with imagined_world(4, 4) as world:
        planner = Planner(Config(trainer=Trainer(name="little"), parallelism=settings), world, 80 * GIB)
        asked = planner.as_asked()
        planner.room = asked.usage.total - 1
        found = planner.cheapest(asked)
    assert _difference(asked, found) == {"parallelism.fsdp.sharding": "full"}


def test_changes_are_named_in_order_of_what_they_cost_until_nothing_helps(monkeypatch):
    """Less and less room: each change fits, and the dearer ones come later."""
    sizes = little_lm.Sizes(width=16, layers=1, vocabulary=32, length=8, batch=8)
    monkeypatch.setattr("torchyard_trainers.registry.build", lambda _: little_lm.LittleLm(sizes))
    settings = convert({"strategy": "ddp", "precision": "fp32", "microBatchSize": 2}, Parallelism, at="parallelism")
    with imagined_world(4, 2) as world:
        planner = Planner(Config(trainer=Trainer(name="little"), parallelism=settings), world, 80 * GIB)
        asked = planner.as_asked()
        assert planner.fits(asked)
        found, named = asked, []
        while found is not None:
            planner.room = found.usage.total - 1
            assert not planner.fits(found)
            found = planner.cheapest(asked)
            if found is not None:
                assert planner.fits(found)
                named.append((found.strategy, found.settings.cpu_offload, found.micro_batch))
    assert named == [("hsdp", False, 2), ("fsdp", False, 2), ("fsdp", True, 2), ("fsdp", True, 1)]


def test_a_gpu_leaves_room_for_its_context_and_gaps():
    assert 0.88 * 80 * GIB < room_on(80 * GIB, 8) < room_on(80 * GIB, 1) < 0.92 * 80 * GIB


@pytest.mark.parametrize(("fraction", "fits"), [(1.0, True), (0.005, False)])
def test_a_rank_held_to_a_part_of_its_gpu_is_planned_for_that_part(monkeypatch, fraction, fits):
    sizes = little_lm.Sizes(width=64, layers=2, vocabulary=2000, length=48, batch=64)
    monkeypatch.setattr("torchyard_trainers.registry.build", lambda _: little_lm.LittleLm(sizes))
    options = {"precision": "fp32", "microBatchSize": 64, "memoryFraction": fraction}
    settings = convert(options, Parallelism, at="parallelism")
    with imagined_world(1, 1) as world:
        planner = Planner(Config(trainer=Trainer(name="little"), parallelism=settings), world, 4 * GIB)
        assert planner.fits(planner.as_asked()) is fits
