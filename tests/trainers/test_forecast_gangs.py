"""What `plan` tells before a job is started is what the step of a real gang then takes."""

import pytest
from forecasts import SIZES, WIDE, forecast_usage

pytestmark = pytest.mark.e2e


POLE = {"name": "vecrl", "params": {"environment": "cartpole", "environments": 8, "horizon": 16, "minibatches": 2}}


def taken(yard, sizes, strategy, world, options, *, nodes=1, steps=3):
    """Bytes at most, as the first rank's tracker counts."""
    file = yard.root / "peak"
    given = [sizes, strategy, options, steps, str(file)]
    gang = yard.start({}, world, nodes=nodes, function=("forecasts:measure", given))
    assert gang.wait() == [0] * world, gang.output()
    return int(file.read_text())


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
    usage = forecast_usage(strategy, (world, world // nodes), options)
    assert usage.total == pytest.approx(taken(yard, SIZES, strategy, world, options, nodes=nodes), rel=0.1)


@pytest.mark.parametrize(
    ("strategy", "world", "options"),
    [
        ("single", 1, {"precision": "fp32", "microBatchSize": 4}),
        ("single", 1, {"precision": "fp16", "microBatchSize": 2}),
        ("ddp", 1, {"precision": "fp32", "microBatchSize": 1}),
        ("ddp", 2, {"precision": "fp32", "microBatchSize": 2}),
        ("ddp", 2, {"precision": "bf16", "microBatchSize": 1}),
        ("fsdp", 2, {"precision": "fp32", "microBatchSize": 2}),
        ("fsdp", 2, {"precision": "bf16", "microBatchSize": 1}),
        ("fsdp", 2, {"precision": "fp32", "microBatchSize": 1, "cpuOffload": True}),
        ("fsdp", 2, {"precision": "bf16", "microBatchSize": 2, "cpuOffload": True}),
    ],
)
def test_where_parameters_take_nearly_all_it_is_what_a_real_step_takes(yard, strategy, world, options):
    """To a fiftieth: there is nothing that rounds the difference between one copy of the gradients and two."""
    usage = forecast_usage(strategy, (world, world), options, WIDE)
    assert usage.total == pytest.approx(taken(yard, WIDE, strategy, world, options), rel=0.02)


@pytest.mark.parametrize(
    ("strategy", "world", "params"),
    [
        ("ddp", 2, {"width": 256, "evalEpisodes": 4}),  # where the acting policy is renewed
        ("ddp", 2, {"width": 64, "evalEpisodes": 600}),  # where it is evaluated
        ("fsdp", 2, {"width": 256, "evalEpisodes": 4}),
    ],
)
def test_what_follows_a_rollout_is_what_it_takes_in_a_gang(yard, strategy, world, params):
    sizes = {**POLE, "params": {**POLE["params"], **params}}
    options = {"precision": "fp32", "microBatchSize": 4}
    usage = forecast_usage(strategy, (world, world), options, sizes)
    assert usage.total == pytest.approx(taken(yard, sizes, strategy, world, options, steps=9), rel=0.02)


TEXT = {"batch": 32, "evalSamples": 8}
# So many at once that the keys and values of the rollout before a step take most, not the step.
OF_DIGITS = {"method": "grpo", "task": "arithmetic", "length": 3, "maxNewTokens": 50}
MANY = {**OF_DIGITS, "batch": 128, "evalSamples": 8, "sftSteps": 0}


@pytest.mark.parametrize(
    ("strategy", "params", "size"),
    [
        ("fsdp", TEXT, 16),
        ("fsdp", {**TEXT, "loraRank": 4}, 16),
        ("ddp", {**TEXT, "method": "grpo", "sftSteps": 0}, 16),
        ("fsdp", MANY, 4),
    ],
    ids=["sft", "lora", "grpo", "many completions"],
)
def test_the_forecast_of_a_language_model_in_a_gang_is_what_it_takes(yard, strategy, params, size):
    sizes, options = {"name": "lm", "params": params}, {"precision": "fp32", "microBatchSize": size}
    usage = forecast_usage(strategy, (2, 2), options, sizes)
    assert params is not MANY or usage.peak == "rollout before a step"
    assert usage.total == pytest.approx(taken(yard, sizes, strategy, 2, options, steps=2), rel=0.1)
