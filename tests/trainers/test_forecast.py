"""What `plan` tells before a job is started is what its step then takes."""

import little_lm
import pytest
import torch
from forecasts import WIDE, forecast_usage

from torchyard_trainers.core.command import main
from torchyard_trainers.core.config import Config, Parallelism, Trainer, convert
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.frozen import frozen
from torchyard_trainers.core.memory.forecast import GIB, Usage, imagined_world, room_on
from torchyard_trainers.core.memory.plan import Planner, Try, _changes, _difference, fewest_that_fit, plan
from torchyard_trainers.core.world import World

ROUTES = {"customers": 8, "batch": 16, "samples": 4, "embedding": 32, "heads": 4, "layers": 2}


def config_of(name, params, options=None):
    parallelism = convert(options or {}, Parallelism, at="parallelism")
    return Config(trainer=Trainer(name=name, params=params), parallelism=parallelism)


def test_a_frozen_copy_is_the_network_bit_for_bit_and_learns_nothing():
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    network.append(network[0])  # its weights are there once
    copied = frozen(network)
    assert not any(each.requires_grad for each in copied.parameters())
    assert copied[0] is copied[3]
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.add_(1)
    assert before.keys() == copied.state_dict().keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in copied.state_dict().items())


@pytest.mark.parametrize(
    ("per_rank", "kept", "each"), [(512, 0.01, 0.005), (100, 0.5, 0.2), (7, 0.0, 0.4), (64, 0.9, 2)]
)
def test_the_fewest_micro_batches_that_fit_are_found_with_few_forecasts(per_rank, kept, each):
    sizes = {-(-per_rank // count) for count in range(1, per_rank + 1)}
    fitting = [size for size in sizes if kept + each * size <= 1]
    tried = set()

    def share(size):
        tried.add(size)
        return kept + each * size

    assert fewest_that_fit(per_rank, share) == max(fitting, default=1)
    assert len(tried) <= 5


def test_the_fewest_micro_batches_are_found_also_where_the_peak_moves_to_another_part_of_the_step():
    def share(size):
        return max(0.1 + 0.0001 * size, 0.02 * size - 1)

    assert fewest_that_fit(512, share) == 86  # 6 of them; 5 would be 103 large, and more than 100 do not fit


@pytest.mark.parametrize(("memory", "ranks"), [(0, 1), (GIB // 2, 1), (GIB, 6)])
def test_a_gpu_without_room_for_any_tensor_is_refused(memory, ranks):
    with pytest.raises(ConfigError, match=r"^--memory: a GPU of \d+ MiB has no room for tensors.*; name a larger GPU$"):
        plan(config_of("cvrp", ROUTES), ranks=ranks, local=ranks, memory=memory)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan", "--world", "1", "--local", "1"], "--config: is missing, so there is no job to plan; pass --config"),
        (["check"], "--config: is missing, so there is no job to check; pass --config"),
        (
            ["--config", "x", "plan", "--world", "0", "--local", "1"],
            "--world: 0 is not a number of ranks; pass at least 1",
        ),
        (
            ["--config", "x", "plan", "--world", "2", "--local", "3"],
            "--local: a node cannot have 3 of 2 ranks; pass 1",
        ),
        (["--config", "x", "plan", "--world", "two", "--local", "1"], "--world: invalid int value: 'two'; see --help"),
        (["plan"], "the following arguments are required: --world, --local; see --help"),
        (
            ["gpus", "--select", "0", "--min-compute-capability", "abc"],
            "'abc' is not a compute capability; write it as 8.0",
        ),
        (["gpus", "--select", "0", "--product", "("], "--product: '(' is not a regular expression"),
    ],
)
def test_a_command_line_that_cannot_be_is_refused_in_a_sentence(capfd, words, says):
    try:
        code = main(words)
    except SystemExit as left:
        code = left.code
    told = capfd.readouterr().err
    assert (code, says in told, told.count("\n")) == (64, True, 1), told


def test_ddp_keeps_gradients_in_its_buckets_and_beside_them_while_it_accumulates():
    once, twice = (
        forecast_usage("ddp", (2, 2), {"precision": "fp32", "microBatchSize": size}, WIDE) for size in (2, 1)
    )
    assert once.gradients + once.buffers == once.parameters
    assert twice.gradients + twice.buffers == 2 * twice.parameters


def test_with_offloading_the_device_holds_the_gradients_that_are_not_yet_reduced():
    options = {"precision": "fp32", "microBatchSize": 1, "cpuOffload": True}
    usage = forecast_usage("fsdp", (2, 2), options, WIDE)
    assert usage.peak != "update"  # which the host makes
    assert usage.total > forecast_usage("ddp", (2, 2), options, WIDE).parameters


@pytest.mark.parametrize(("chosen", "copies"), [({}, 1), ({"foreach": True}, 1), ({"fused": True}, 0)])
def test_an_update_on_a_gpu_takes_what_the_optimizer_is_configured_to_or_what_pytorch_chooses_there(
    monkeypatch, chosen, copies
):
    monkeypatch.setattr(little_lm, "AdamW", lambda parameters, **_: torch.optim.AdamW(parameters, **chosen))
    usage = forecast_usage("single", (1, 1), {"precision": "fp32", "microBatchSize": 1}, WIDE, on_gpu=True)
    assert usage.optimizer == pytest.approx((2 + copies) * usage.parameters, rel=0.01)


def test_gradients_are_copied_before_gloo_reduces_them_and_nccl_needs_no_copy():
    options = {"precision": "fp32", "microBatchSize": 2}
    gloo, nccl = (forecast_usage("fsdp", (2, 2), options, WIDE, on_gpu=on_gpu) for on_gpu in (False, True))
    assert nccl.total < gloo.total


def test_sharding_divides_the_state_and_checkpointing_lowers_activations():
    plain = {"precision": "fp32", "microBatchSize": 8}
    whole, sharded = forecast_usage("ddp", (4, 2), plain), forecast_usage("fsdp", (4, 2), plain)
    nodes, offloaded = (
        forecast_usage("hsdp", (4, 2), plain),
        forecast_usage("fsdp", (4, 2), {**plain, "cpuOffload": True}),
    )
    assert sharded.parameters == pytest.approx(whole.parameters / 4, rel=0.05)
    assert nodes.optimizer == pytest.approx(whole.optimizer / 2, rel=0.05)
    assert offloaded.total < sharded.total - sharded.optimizer
    assert offloaded.host >= sharded.optimizer
    recomputed = forecast_usage("ddp", (4, 2), {**plain, "activationCheckpointing": "full"})
    assert recomputed.activations < 0.7 * whole.activations
    assert recomputed.optimizer == whole.optimizer


def test_sharding_gradients_alone_keeps_parameters_gathered_and_is_what_resharding_after_forward_turns_off():
    plain = {"precision": "fp32", "microBatchSize": 1}
    full, grad, spelt = (
        forecast_usage("fsdp", (4, 2), {**plain, "fsdp": options})
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


@pytest.mark.parametrize(("precision", "offloads"), [("bf16", True), ("fp16", False)])
def test_no_change_is_named_that_the_trainer_would_refuse(precision, offloads):
    settings = Parallelism(strategy="fsdp", precision=precision)
    asked = Try(settings, "fsdp", 1, Usage(0, 0, 0, 0, 0))
    world = World(0, 2, 0, torch.device("cpu"), grouped=True, local_size=2)
    ways = [way for group in _changes(asked, world) for way, _ in group]
    assert any(way.cpu_offload for way in ways) is offloads


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
                named.append((found.strategy, found.settings.cpu_offload))
    assert list(dict.fromkeys(named)) == [("ddp", False), ("hsdp", False), ("fsdp", False), ("fsdp", True)]


def test_a_model_whose_gradients_do_not_fit_twice_fits_where_nothing_accumulates(monkeypatch):
    monkeypatch.setattr("torchyard_trainers.registry.build", lambda _: little_lm.LittleLm(little_lm.Sizes(**WIDE)))
    options = {"strategy": "ddp", "precision": "fp32", "microBatchSize": 1}
    settings = convert(options, Parallelism, at="parallelism")
    with imagined_world(2, 2) as world:
        planner = Planner(Config(trainer=Trainer(name="little"), parallelism=settings), world, 80 * GIB)
        asked = planner.as_asked()
        planner.room = asked.usage.total - 1
        found = planner.cheapest(asked)
    assert _difference(asked, found) == {"parallelism.microBatchSize": 2}


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


@pytest.mark.parametrize("size", ["auto", 6])
def test_the_forecast_never_splits_a_micro_batch_whose_samples_depend_on_each_other(size):
    """BatchNorm: the job tries none of them, and refuses a single sample."""
    settings = Parallelism(strategy="ddp", precision="fp32", micro_batch_size=size)
    config = Config(trainer=Trainer(name="little_images:Images"), parallelism=settings)
    with imagined_world(2, 2) as world:
        planner = Planner(config, world, 80 * GIB)
        whole = planner.as_asked()
        planner.room = whole.usage.total - 1
        assert planner.as_asked().micro_batch == 6
        found = planner.cheapest(whole)
    assert not found or (found.micro_batch, found.settings.micro_batch_size) == (6, size)
