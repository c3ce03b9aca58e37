"""CUDA graphs change when kernels are launched and nothing else; without a GPU there are none."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from torchyard_trainers.core import graphs
from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.graphs import Graphed, GraphedLoss, eager_mode
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.randomness import split_keys
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.step import optimize
from torchyard_trainers.core.workload import Session
from torchyard_trainers.core.world import World, make_deterministic
from torchyard_trainers.cvrp import params as routing
from torchyard_trainers.cvrp import policy
from torchyard_trainers.cvrp.evaluation import make
from torchyard_trainers.cvrp.task import Cvrp
from torchyard_trainers.vecrl import params as playing
from torchyard_trainers.vecrl.task import VecRL
from torchyard_trainers.vlm import params as seeing
from torchyard_trainers.vlm import tower
from torchyard_trainers.vlm.task import VisionLanguagePolicy

NO_GPU = "no CUDA GPU: run `pytest tests/trainers` where there is one"
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)),
]


class Rerun:
    """Stands in for a graph on a CPU: does the work again, on the same inputs and into the same memory."""

    def __init__(self, act, inputs, found):
        self._act, self._inputs, self._found = act, inputs, found

    def replay(self):
        for own, new in zip(tree_leaves(self._found), tree_leaves(self._act(*self._inputs)), strict=True):
            if isinstance(own, torch.Tensor):
                with torch.no_grad():
                    own.copy_(new)


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    """Yield a device on which graphs are made; a CPU's have a graph's memory, if nothing else of it."""

    def capture(act, inputs):
        found = act(*inputs)
        return Rerun(act, inputs, found), found

    if request.param == "cpu":
        monkeypatch.setattr(graphs, "_capture", capture)
        monkeypatch.setattr(graphs, "_records", lambda _: not graphs._EAGER.on)
        monkeypatch.setattr(policy, "can_sync", lambda _: False)  # a graph always has the same moves
        monkeypatch.setattr(torch, "compile", lambda act, **_: act)
    make_deterministic(torch.device(request.param))
    return torch.device(request.param)


def test_a_graph_gives_what_the_function_gives_for_each_shape_and_for_new_numbers(device):
    weight = torch.randn(3, 3, device=device)

    def act(pair, more):
        first, second = pair
        return {"sum": first @ weight + second, "more": None if more is None else more + 1}

    graphed = Graphed(act, wanted=True)
    for size in (2, 5, 2):
        pair = torch.randn(size, 3, device=device), torch.randn(size, 3, device=device)
        assert torch.equal(graphed(pair, None)["sum"], act(pair, None)["sum"])
        assert graphed(pair, None)["more"] is None
        assert torch.equal(graphed(pair, torch.ones(2, device=device))["more"], torch.full((2,), 2.0, device=device))
    weight.mul_(2)
    assert torch.equal(graphed(pair, None)["sum"], act(pair, None)["sum"])


def test_shapes_beyond_the_number_of_kept_graphs_are_computed_correctly(device):
    graphed = Graphed(lambda numbers: numbers * 2, wanted=True)
    for size in range(1, 12):
        numbers = torch.ones(size, device=device)
        assert graphed(numbers).tolist() == [2.0] * size


def test_what_fits_into_memory_only_without_a_graph_is_computed_without_one(device, capsys, monkeypatch):
    graphed = Graphed(lambda numbers: numbers * 2, wanted=True)
    graphed(torch.ones(1, device=device))
    capture, tries = graphs._capture, []

    def capture_with_little_memory(act, inputs):
        def act_too_large(*given):
            if device.type == "cpu" or torch.cuda.is_current_stream_capturing():
                tries.append(given)
                run_out_of_memory(device)
            return act(*given)

        return capture(act_too_large, inputs)

    monkeypatch.setattr(graphs, "_capture", capture_with_little_memory)
    for size in (2, 3, 1, 2):
        assert graphed(torch.ones(size, device=device)).tolist() == [2.0] * size
    assert len(tries) == 1
    assert capsys.readouterr().out.count("no GPU memory is left for a CUDA graph") == 1


def run_out_of_memory(device):
    """Run out of GPU memory, on a CPU as PyTorch would say it."""
    if device.type == "cpu":
        raise torch.OutOfMemoryError("CUDA out of memory")
    torch.empty(2**50, dtype=torch.uint8, device=device)


def test_a_graphed_loss_has_the_gradient_of_the_loss_however_it_is_scaled_and_added_up(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    model.register_parameter("idle", nn.Parameter(torch.zeros(1, device=device)))

    def act(inputs):
        found = model(inputs)
        return found.square().sum(), {"mean": found.mean()}

    graphed = GraphedLoss(act, list(model.parameters()))
    batches = [torch.randn(6, 4, device=device) for _ in range(3)]
    gradients = []

    def learn(function, inputs):
        loss, beside = function(inputs)
        assert loss.item() == pytest.approx(act(inputs)[0].item())
        assert beside["mean"].item() == pytest.approx(act(inputs)[1]["mean"].item())
        (loss * 0.5).backward()

    for function in (act, graphed):
        model.zero_grad()
        for inputs in batches:
            learn(function, inputs)
        gradients.append([each.grad for each in model.parameters()])
    for plain, replayed in zip(*gradients, strict=True):
        assert (plain is None) == (replayed is None)
        assert plain is None or torch.allclose(plain, replayed, rtol=1e-5, atol=1e-6)


def test_eager_mode_lasts_until_the_outermost_block_ends():
    with eager_mode(compiled=True):
        assert graphs._EAGER.on
        with eager_mode(compiled=False):
            assert graphs._EAGER.on
        assert graphs._EAGER.on
    assert not graphs._EAGER.on


@pytest.mark.parametrize("model", ["am", "dgt"])
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
def test_routes_of_a_graph_are_the_routes_also_of_new_weights(model, half, device):
    work = Cvrp(routing.resolve_params({"model": model}, GRAPHS))
    network = work.build().to(device)
    instances = make(work.settings, "train", torch.arange(32, device=device))
    keys = split_keys(torch.arange(32, device=device), 8)
    for _ in range(2):
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
            for sampled in (keys, None):
                with eager_mode(compiled=False):
                    expected = network(instances, sampled).moves
                assert torch.equal(network(instances, sampled).moves, expected)
        for parameter in network.parameters():
            parameter.data.mul_(1.1)


GRAPHS = Parallelism(compile=True)  # the way to ask for them
PLAYED = {"environments": 8, "horizon": 8, "evalEpisodes": 8}
CARTS = VecRL, playing, {**PLAYED, "environment": "cartpole", "environments": 32, "epochs": 2, "minibatches": 2}
SNAKES = VecRL, playing, {**PLAYED, "environment": "snake", "model": "cnn"}
SEES = (
    VisionLanguagePolicy,
    seeing,
    {"environments": 6, "horizon": 8, "evalEpisodes": 3, "rolloutBatch": 4, "head": "mlp"},
)
ADAPTED = (*SEES[:2], {**SEES[2], "loraRank": 4})  # of which also the loss is a graph
SHARED = (
    Cvrp,
    routing,
    {"customers": 5, "batch": 16, "samples": 4, "evalInstances": 40, "evalBatch": 32, "evalEvery": 2},
)
ROLLOUT = Cvrp, routing, {**SHARED[2], "baseline": "rollout", "baselineEvery": 3, "baselineInstances": 32}


@pytest.mark.parametrize("micro_batch", [None, 3], ids=["whole", "accumulated"])
@pytest.mark.parametrize(
    "workload", [CARTS, SNAKES, ADAPTED, SHARED, ROLLOUT], ids=["carts", "snakes", "adapted", "shared", "rollout"]
)
def test_training_with_cuda_graphs_learns_what_training_without_them_learns(workload, micro_batch, device):
    plain, replayed = (trained(workload, micro_batch, device, plain=plain) for plain in (True, False))
    assert replayed[0] == pytest.approx(plain[0], rel=1e-4, abs=1e-5)
    for mine, others in zip(tree_leaves(replayed[1]), tree_leaves(plain[1]), strict=True):
        assert torch.allclose(mine.float(), others.float(), rtol=1e-3, atol=1e-4)


def test_a_vision_tower_that_reads_sizes_from_the_device_is_not_recorded(monkeypatch):
    def capture(_act, _inputs):
        pytest.fail("a recorded pass cannot wait for the device")

    monkeypatch.setattr(tower, "COMPARED", ())
    monkeypatch.setattr(graphs, "_capture", capture)
    monkeypatch.setattr(graphs, "_records", lambda _: True)
    trained(SEES, None, torch.device("cpu"), plain=False)


def trained(workload, micro_batch, device, *, plain):
    """Take steps; return all that they reported, and what a checkpoint would hold beside the weights."""
    kind, params, given = workload
    work = kind(params.resolve_params(given, GRAPHS))
    torch.manual_seed(0)
    model = work.build().to(device)
    world = World(0, 1, 0, device, grouped=False)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    precision = Precision("fp32", device, sharded=False)
    session = Session(Parallel("single", model, model), precision, world, reporter, micro_batch)
    optimizer = work.optimizer(model)
    told = []
    with eager_mode(compiled=False) if plain else nullcontext():
        work.begin(session)
        for step in range(9):
            work.prepare(session, step)
            totals = optimize(work, session, optimizer, step, {})
            found = totals.metrics | work.after_step(session, step + 1, totals.metrics)
            told += [value for name, value in sorted(found.items()) if name != "envStepsPerSecond"]
    return told, work.state()
