"""Activation checkpointing: the same bits in less memory, with every kind of block and under every wrapper."""

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from torchyard_trainers.core.activations import checkpoint_activations
from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.parallel import parallelize
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.world import World
from torchyard_trainers.cvrp.encoders import AttentionBlock, build_encoder
from torchyard_trainers.cvrp.problems import open_problem

WIDTH, HEADS, LAYERS, BATCH, NODES = 32, 4, 4, 16, 21


def forward_and_backward(model, how):
    """Loss, gradients [P] and peak bytes of tensors during one pass through `LAYERS` blocks."""
    torch.manual_seed(0)
    blocks = build_encoder(model, WIDTH, HEADS, LAYERS, open_problem("cvrp")).blocks
    names = list(blocks.state_dict())
    checkpoint_activations(blocks, how)
    assert list(blocks.state_dict()) == names
    nodes, distance = torch.randn(BATCH, NODES, WIDTH), torch.rand(BATCH, NODES, NODES)
    tracker = MemTracker()
    tracker.track_external(blocks)
    with tracker:
        for each in blocks:
            nodes = each(nodes, distance)
        loss = nodes.square().sum()
        loss.backward()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    return loss.item(), torch.cat([each.grad.flatten() for each in blocks.parameters()]), peak


@pytest.mark.parametrize("model", ["am", "gat", "gt"])
def test_activation_checkpointing_changes_no_bit_and_lowers_memory(model):
    loss, gradients, kept_all = forward_and_backward(model, "none")
    peaks = {}
    for how in ("selective", "full"):
        other_loss, other_gradients, peaks[how] = forward_and_backward(model, how)
        assert other_loss == loss
        assert torch.equal(other_gradients, gradients)
    assert peaks["full"] < 0.5 * kept_all
    assert peaks["full"] < peaks["selective"] < kept_all


def products_in(how):
    """Matrix products of one pass: what is computed again is counted again."""
    from torch.utils.flop_counter import FlopCounterMode

    blocks = nn.ModuleList([AttentionBlock(WIDTH, HEADS)])
    checkpoint_activations(blocks, how)
    with FlopCounterMode(display=False) as counter:
        blocks[0](torch.randn(BATCH, NODES, WIDTH), torch.empty(0)).sum().backward()
    return counter.get_total_flops()


def test_selective_recomputes_no_matrix_product_and_full_recomputes_all():
    assert products_in("selective") == products_in("none")
    assert products_in("full") > 1.25 * products_in("none")


@pytest.mark.parametrize("how", ["full", "selective"])
def test_a_model_that_names_no_blocks_is_one_block(how):
    """Asked to compute again, it does: the field is heard."""
    passes = []
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    model[0].register_forward_hook(lambda *_: passes.append(1))
    world = World(0, 1, 0, torch.device("cpu"), grouped=False)
    precision = Precision("fp32", world.device, sharded=False)
    settings = Parallelism(activation_checkpointing=how)
    parallel = parallelize(model, [], "single", settings=settings, precision=precision, world=world)
    parallel.forward(torch.ones(1, 2)).sum().backward()
    assert len(passes) == 2
