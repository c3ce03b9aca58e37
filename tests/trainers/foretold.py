"""Forecasts of the little language model, of sizes that tests share."""

import little_lm

from torchyard_trainers.core.config import Parallelism, convert
from torchyard_trainers.core.forecast import forecast, imagined_world

SIZES = {"width": 64, "heads": 4, "layers": 2, "vocabulary": 200, "length": 48, "batch": 32}
# Of so few tokens that parameters take nearly all, and half of them are two large matrices.
WIDE = {"width": 128, "heads": 4, "layers": 2, "vocabulary": 2000, "length": 8, "batch": 4}


def told(strategy, shape, options, sizes=SIZES, *, on_gpu=False):
    settings = convert(options, Parallelism, at="parallelism")
    with imagined_world(*shape) as world:
        return forecast(
            lambda: little_lm.LittleLm(little_lm.Sizes(**sizes)),
            world,
            strategy,
            settings=settings,
            precision=settings.precision,
            micro_batch=settings.micro_batch_size,
            real=False,
            on_gpu=on_gpu,
        )
