"""Every strategy, world size, accumulation, precision and way of checkpointing makes the same steps."""

import json
import re

import pytest
from tests.support.trainers.gangs import AT_ONCE, Yard

pytestmark = pytest.mark.e2e

TRAIN = ("little_lm:train", [{}])


def settings(**parallelism):
    return {
        "trainer": {"name": "little"},
        "device": "cpu",
        "logging": {"tensorboard": False},
        "parallelism": AT_ONCE | parallelism,
    }


def losses_and_norms(yard):
    """[[loss, gradient norm before clipping], ...] by step."""
    return [[entry["loss"], entry["gradNorm"]] for entry in yard.metrics()]


@pytest.fixture(scope="module")
def one_process(fork_server, tmp_path_factory):
    """What one process that accumulates nothing does, by precision."""
    found = {}
    for precision in ("fp32", "bf16", "fp16"):
        yard = Yard(fork_server, tmp_path_factory.mktemp(precision))
        yard.train(settings(precision=precision, strategy="single"), function=TRAIN)
        found[precision] = losses_and_norms(yard)
    return found


def flat(pairs):
    return [value for pair in pairs for value in pair]


@pytest.mark.parametrize(
    ("strategy", "shape", "more"),
    [
        ("single", (1, 1), {"microBatchSize": 5}),
        ("ddp", (1, 1), {"activationCheckpointing": "full"}),
        ("ddp", (2, 2), {"microBatchSize": 2, "activationCheckpointing": "selective"}),
        ("ddp", (3, 3), {"activationCheckpointing": "full", "microBatchSize": "auto"}),
        ("fsdp", (1, 1), {}),
        ("fsdp", (2, 1), {"microBatchSize": 2, "activationCheckpointing": "full"}),
        ("fsdp", (2, 2), {"cpuOffload": True, "fsdp": {"sharding": "grad"}}),
        ("fsdp", (3, 3), {"microBatchSize": 3, "activationCheckpointing": "selective", "cpuOffload": True}),
        ("hsdp", (4, 2), {"microBatchSize": 1, "activationCheckpointing": "full", "cpuOffload": True}),
        ("hsdp", (2, 1), {"activationCheckpointing": "selective", "microBatchSize": "auto"}),
        ("auto", (2, 2), {"cpuOffload": True, "microBatchSize": "auto"}),
    ],
)
def test_losses_and_clipped_gradients_are_those_of_one_process(yard, one_process, strategy, shape, more):
    world, nodes = shape
    yard.train(settings(strategy=strategy, precision="fp32", **more), world, nodes=nodes, function=TRAIN)
    assert flat(losses_and_norms(yard)) == pytest.approx(flat(one_process["fp32"]), abs=1e-5)


@pytest.mark.parametrize(("strategy", "shape"), [("ddp", (2, 2)), ("fsdp", (3, 3)), ("hsdp", (4, 2))])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_rounds_a_little_differently_and_no_more(yard, one_process, precision, strategy, shape):
    world, nodes = shape
    given = settings(strategy=strategy, precision=precision, microBatchSize=2, activationCheckpointing="selective")
    yard.train(given, world, nodes=nodes, function=TRAIN)
    assert flat(losses_and_norms(yard)) == pytest.approx(flat(one_process[precision]), rel=2e-2)
    assert flat(one_process[precision]) == pytest.approx(flat(one_process["fp32"]), rel=2e-2)


def test_a_run_continues_from_ddp_to_hsdp_to_fsdp_to_one_process(yard, one_process):
    """One checkpoint format serves all: what is replicated, sharded in two dimensions, sharded in one, and whole."""
    for steps, strategy, world, nodes in ((1, "ddp", 2, 2), (3, "hsdp", 4, 2), (4, "fsdp", 3, 3), (6, "single", 1, 1)):
        given = settings(strategy=strategy, precision="fp32")
        yard.train(given, world, nodes=nodes, function=("little_lm:train", [{"steps": steps}]))
        assert yard.record(steps)["strategy"] == strategy
    assert flat(losses_and_norms(yard)) == pytest.approx(flat(one_process["fp32"]), abs=1e-5)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_exchange_gradients_in_the_last_micro_batch_only(yard, strategy):
    file = yard.root / "held"
    gang = yard.start({}, 2, nodes=2, function=("little_lm:accumulate_two", [strategy, str(file)]))
    assert gang.wait() == [0, 0], gang.output()
    inner, last = json.loads(file.read_text())
    if strategy == "ddp":
        assert inner[0] != pytest.approx(inner[1], rel=1e-3), "each has its own"
    else:
        assert inner == [None, None], "nothing is shared out yet"
    assert last[0] == last[1] is not None


@pytest.mark.parametrize("own_disks", [False, True])
def test_a_sharded_and_replicated_run_resumes_with_the_same_bits(yard, calm, own_disks):
    given = settings(strategy="hsdp", precision="fp32", microBatchSize=2)
    calm.own_disks = yard.own_disks = own_disks
    calm.train(given, 4, nodes=2, function=TRAIN)
    yard.train(given, 4, nodes=2, function=("little_lm:train", [{"steps": 3}]))
    yard.train(given, 4, nodes=2, function=TRAIN)
    assert yard.weights() == calm.weights()


@pytest.mark.parametrize(
    ("world", "nodes", "parallelism", "message"),
    [
        (2, 2, {"strategy": "hsdp"}, "parallelism.strategy: hsdp shards among the processes of a node"),
        (3, 2, {"strategy": "hsdp"}, "there are 3 with 2 on this one; use fsdp"),
        (2, 2, {"strategy": "ddp", "cpuOffload": True}, "cpuOffload: true needs strategy fsdp or hsdp, not ddp"),
        (1, 1, {"strategy": "fsdp", "cpuOffload": True, "precision": "fp16"}, "is incompatible with precision fp16"),
        (2, 2, {"strategy": "single"}, "single runs one process, but there are 2"),
    ],
)
def test_a_strategy_that_the_ranks_cannot_have_is_a_configuration_error(yard, world, nodes, parallelism, message):
    gang = yard.start(settings(**parallelism), world, nodes=nodes, function=TRAIN)
    assert gang.wait()[0] == 64, gang.output()
    assert message in yard.failure()["message"]


def test_weights_of_a_sharded_model_are_gathered_one_tensor_at_a_time(yard):
    """It may be too large for any one GPU; and it must be saved when it is trained."""
    file = yard.root / "gathered"
    sizes = {"width": 64, "layers": 6, "vocabulary": 100}
    gang = yard.start({}, 2, nodes=2, function=("forecasts:gather", [sizes, str(file)]))
    assert gang.wait() == [0, 0], gang.output()
    found = json.loads(file.read_text())
    one, everything = max(found["sizes"]), sum(found["sizes"])
    assert 3 * one < everything / 4
    shards = everything / 2
    # One tensor whole, its parts in flight, and for a moment parts of the one before, which a thread of gloo lets go.
    assert found["host"][1] < shards + 3 * one
    assert max(found["copied"]) < shards + everything + 3 * one  # what is copied into is there as well
    assert found["host"][0] < shards + everything + 3 * one  # of a GPU's it would take no more than that of the other


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("strategy", "world", "own_disks"), [("single", 1, False), ("fsdp", 2, False), ("fsdp", 2, True)]
)
def test_a_parameter_without_a_gradient_so_far_does_not_keep_a_run_from_resuming(
    yard, calm, strategy, world, own_disks
):
    """The optimizer has no state of it yet, and must have none afterwards: its count of updates starts later."""
    yard.own_disks = own_disks
    given = {
        "trainer": {"name": "late_head:LateHead", "params": {"steps": 8}},
        "device": "cpu",
        "logging": {"tensorboard": False},
        "parallelism": {"strategy": strategy, "precision": "fp32"},
        "checkpoint": {"interval": {"steps": 2}},
    }
    calm.train(given, world)
    short = given | {"trainer": given["trainer"] | {"params": {"steps": 2}}}
    yard.train(short, world)
    yard.train(given, world)
    assert yard.weights() == calm.weights()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("strategy", "workload", "code", "message"),
    [
        ("fsdp", "LateHead", 0, "1 trainable parameters got no gradient in the first step, .*: correction; set"),
        ("fsdp", "LateAdapter", 64, r"adapters get no gradient, .*: lora_spare\.weight; leave their layers out"),
        ("ddp", "LateHead", 64, "ddp waits for a gradient of every parameter, .* no part of correction; set"),
    ],
)
def test_parameters_without_a_gradient_are_named_on_two_processes(yard, strategy, workload, code, message):
    given = {
        "trainer": {"name": f"late_head:{workload}", "params": {"steps": 2}},
        "device": "cpu",
        "logging": {"tensorboard": False},
        "parallelism": {"strategy": strategy, "precision": "fp32"},
    }
    gang = yard.start(given, 2)
    assert gang.wait() == [code] * 2, gang.output()
    assert re.search(message, gang.output() + "".join(map(str, yard.report()["warnings"] if not code else [])))
