"""What `plan` tells before a job is started is what its step then takes."""

import little_lm
import pytest

from torchyard_trainers.core.config import Parallelism, convert
from torchyard_trainers.core.forecast import GIB, forecast, imagined_world, room_on

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
    ],
)
def test_the_forecast_is_within_a_tenth_of_what_a_real_step_takes(yard, strategy, world, nodes, options):
    file = yard.root / "peak"
    gang = yard.start({}, world, nodes=nodes, function=("little_lm:measure", [SIZES, strategy, options, str(file)]))
    assert gang.wait() == [0] * world, gang.output()
    usage = told(strategy, (world, world // nodes), options)
    assert usage.total == pytest.approx(int(file.read_text()), rel=0.1)


def test_a_gpu_leaves_room_for_its_context_and_gaps():
    assert 0.88 * 80 * GIB < room_on(80 * GIB, 8) < room_on(80 * GIB, 1) < 0.92 * 80 * GIB
