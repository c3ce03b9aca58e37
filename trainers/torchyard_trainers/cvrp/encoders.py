"""Encoders: from an instance to one vector a node.

Every normalisation looks at one instance or one node only, so that neither world size nor micro-batch can change a
result (Kool's BatchNorm would).
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from torchyard_trainers.core.device import works_on_cpu
from torchyard_trainers.cvrp.instances import Instances, distances
from torchyard_trainers.cvrp.problems.interface import Problem


class Attention(nn.Module):
    """Multi-head self-attention over the nodes (Vaswani 2017)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, nodes: Tensor, distance: Tensor) -> Tensor:
        """[B, n, d], [B, n, n] -> [B, n, d]."""
        batch, count, width = nodes.shape
        queries, keys, values = self.inputs(nodes).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = attend(queries, keys, values, self._bias(distance))
        return self.output(mixed.transpose(1, 2).reshape(batch, count, width))

    def _bias(self, _distance: Tensor) -> Tensor | None:
        return None


def attend(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """Attend, all of them [B, H, n, d / H] and the bias [B, H, n, n], in the dtype of the queries.

    On a CPU in fp32: there the gradient in bf16 takes many times as long.
    """
    dtype = queries.dtype
    on_cpu = works_on_cpu(queries)
    at = torch.float32 if on_cpu else dtype
    with torch.autocast(queries.device.type, enabled=False) if on_cpu else nullcontext():
        mixed = F.scaled_dot_product_attention(
            queries.to(at), keys.to(at), values.to(at), attn_mask=None if bias is None else bias.to(at)
        )
    return mixed.to(dtype)


class DistanceBiasedAttention(Attention):
    """Attention whose heads each weigh distances by a learned slope."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        # Heads start from far-sighted to near-sighted, so that none has to find the scale of distances by itself.
        self.slope = nn.Parameter(torch.linspace(0.0, -4.0, heads))

    def _bias(self, distance: Tensor) -> Tensor:
        return self.slope[:, None, None] * distance[:, None]


class EdgeAttention(nn.Module):
    """Graph attention over edges (GATv2, Brody 2022): softmax over j of a_h . LeakyReLU(S x_i + T x_j + u d_ij).

    A network scores every pair of nodes, so it needs memory for B n n d numbers where dot products need B H n n.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.here = nn.Linear(width, width)
        self.there = nn.Linear(width, width, bias=False)
        self.edge = nn.Parameter(torch.empty(width).normal_())
        self.score = nn.Parameter(torch.empty(heads, width // heads).uniform_(-1, 1) * (heads / width) ** 0.5)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, nodes: Tensor, distance: Tensor) -> Tensor:
        """[B, n, d], [B, n, n] -> [B, n, d]."""
        there = self.there(nodes)
        pairs = self.here(nodes)[:, :, None] + there[:, None]
        pairs = torch.addcmul(pairs, distance[..., None].to(pairs.dtype), self.edge.to(pairs.dtype))
        scores = (F.leaky_relu(pairs, 0.2).unflatten(-1, (self.heads, -1)) * self.score.to(pairs.dtype)).sum(-1)
        attention = scores.float().softmax(2).to(there.dtype)  # [B, n, n, H], over the third
        mixed = attention.permute(0, 3, 1, 2) @ there.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.output(mixed.transpose(1, 2).flatten(2))


class AddAndNorm(nn.Module):
    """Add what a layer found, then normalise each channel over the nodes of one instance."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, nodes: Tensor, found: Tensor) -> Tensor:
        """Twice [B, n, d] -> [B, n, d]."""
        return _AddAndNorm.apply(nodes, found, self.weight, self.bias)


class _AddAndNorm(torch.autograd.Function):
    """Its gradient in closed form: half the passes over memory, and half the memory, of one operation after another."""

    @staticmethod
    def forward(ctx: Any, nodes: Tensor, found: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        total = nodes + found
        # `torch.var_mean` over the middle dimension takes six times as long on a CPU.
        centred = total.float()
        centred = centred.sub_(centred.mean(1, keepdim=True))
        scale = torch.rsqrt(centred.square().mean(1, keepdim=True) + 1e-5)
        ctx.save_for_backward(centred, scale, weight)
        ctx.dtypes = nodes.dtype, found.dtype, weight.dtype, bias.dtype
        return torch.addcmul(bias, centred, scale * weight).to(total.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        """With y = w s c + b and c = x - mean x: dx = w s (g - mean g - c s^2 mean(g c))."""
        centred, scale, weight = ctx.saved_tensors
        grad = grad.float()
        mean = grad.mean(1, keepdim=True)
        slope = (grad * centred).mean(1, keepdim=True) * scale
        inwards = (grad - mean).addcmul_(centred, slope * scale, value=-1).mul_(scale * weight)
        count = grad.shape[1]
        grads = inwards, inwards, slope.sum((0, 1)) * count, mean.sum((0, 1)) * count
        return tuple(each.to(dtype) for each, dtype in zip(grads, ctx.dtypes, strict=True))


class Widening(nn.Linear):
    """A linear layer to more channels. Its weight is turned first, so that its gradient is x' g instead of (g' x)'.

    That has as many long rows as there are inputs instead of outputs: 13 ms instead of 22 for [10752, 128] -> 512 on
    one core of a CPU.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., d] -> [..., outputs]."""
        outputs = inputs @ self.weight.t().contiguous()
        bias = self.bias.to(outputs.dtype)
        # In place where nothing is kept for a gradient: half the page faults of a step whose baseline is a rollout.
        return outputs + bias if torch.is_grad_enabled() else outputs.add_(bias)


class AttentionBlock(nn.Module):
    """A layer of Kool's attention model: attention and feed-forward, each with skip and norm after it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.attention_norm = AddAndNorm(width)
        # In place: the sum before it is not among what checkpointing keeps, a product would be.
        self.feed_forward = nn.Sequential(
            Widening(width, 4 * width), nn.ReLU(inplace=True), nn.Linear(4 * width, width)
        )
        self.feed_forward_norm = AddAndNorm(width)

    def forward(self, nodes: Tensor, distance: Tensor) -> Tensor:
        """[B, n, d], [B, n, n] -> [B, n, d]."""
        nodes = self.attention_norm(nodes, self.attention(nodes, distance))
        return self.feed_forward_norm(nodes, self.feed_forward(nodes))


class GraphBlock(nn.Module):
    """A layer of a graph transformer or graph attention network: pre-norm attention, gated feed-forward."""

    def __init__(self, attention: nn.Module, width: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = attention
        self.feed_forward_norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 4 * width)
        self.output = nn.Linear(2 * width, width)

    def forward(self, nodes: Tensor, distance: Tensor) -> Tensor:
        """[B, n, d], [B, n, n] -> [B, n, d]."""
        nodes = nodes + self.attention(self.attention_norm(nodes), distance)
        value, gate = self.gate(self.feed_forward_norm(nodes)).chunk(2, -1)
        return nodes + self.output(value * F.silu(gate))


class Encoder(nn.Module):
    """Embeds depot and customers and passes them through blocks."""

    def __init__(self, blocks: list[nn.Module], width: int, final_norm: nn.Module, problem: Problem) -> None:
        super().__init__()
        self.problem = problem
        self.depot = nn.Linear(2, width)
        self.customer = nn.Linear(2 + problem.node_features, width)
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = final_norm

    def forward(self, instances: Instances) -> Tensor:
        """Instances of n nodes -> [B, n, d]."""
        dtype = self.depot.weight.dtype
        features = self.problem.describe_nodes(instances)
        customers = torch.cat([instances.xy[:, 1:], features[:, 1:]], -1).to(dtype)
        nodes = torch.cat([self.depot(instances.xy[:, :1].to(dtype)), self.customer(customers)], 1)
        distance = distances(instances)
        for block in self.blocks:
            nodes = block(nodes, distance)
        return self.final_norm(nodes)


def build_encoder(model: str, width: int, heads: int, layers: int, problem: Problem) -> Encoder:
    """Build the encoder of a model by its name: am, gat, gt or dgt."""
    if model == "am":
        return Encoder([AttentionBlock(width, heads) for _ in range(layers)], width, nn.Identity(), problem)
    attention = EdgeAttention if model == "gat" else DistanceBiasedAttention
    blocks: list[nn.Module] = [GraphBlock(attention(width, heads), width) for _ in range(layers)]
    return Encoder(blocks, width, nn.LayerNorm(width), problem)
