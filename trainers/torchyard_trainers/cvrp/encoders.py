"""Encoders `am` and `gt`: from an instance to one vector a node.

Every normalisation looks at one instance or one node only, so that neither world size nor micro-batch can change a
result (Kool's BatchNorm would).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchyard_trainers.cvrp.instances import Instances


class Attention(nn.Module):
    """Multi-head self-attention over the nodes, with an optional additive bias [B, H, n, n]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, nodes: Tensor, bias: Tensor | None = None) -> Tensor:
        """[B, n, d] -> [B, n, d]."""
        batch, count, width = nodes.shape
        queries, keys, values = self.inputs(nodes).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if bias is not None:
            bias = bias.to(queries.dtype)
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        return self.output(mixed.transpose(1, 2).reshape(batch, count, width))


class InstanceNorm(nn.Module):
    """Normalise each channel over the nodes of one instance."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, nodes: Tensor) -> Tensor:
        """[B, n, d] -> [B, n, d]."""
        variance, mean = torch.var_mean(nodes.float(), dim=1, keepdim=True, correction=0)
        return (((nodes.float() - mean) * torch.rsqrt(variance + 1e-5)) * self.weight + self.bias).to(nodes.dtype)


class AttentionBlock(nn.Module):
    """A layer of Kool's attention model: attention and feed-forward, each with skip and norm after it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.attention_norm = InstanceNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.feed_forward_norm = InstanceNorm(width)

    def forward(self, nodes: Tensor, _distance: Tensor) -> Tensor:
        """[B, n, d] -> [B, n, d]."""
        nodes = self.attention_norm(nodes + self.attention(nodes))
        return self.feed_forward_norm(nodes + self.feed_forward(nodes))


class GraphBlock(nn.Module):
    """A graph-transformer layer: pre-norm, a learned slope over distances for each head, gated feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        # Heads start from far-sighted to near-sighted, so that none has to find the scale of distances by itself.
        self.slope = nn.Parameter(torch.linspace(0.0, -4.0, heads))
        self.feed_forward_norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 4 * width)
        self.output = nn.Linear(2 * width, width)

    def forward(self, nodes: Tensor, distance: Tensor) -> Tensor:
        """[B, n, d], [B, n, n] -> [B, n, d]."""
        bias = self.slope[:, None, None] * distance[:, None]
        nodes = nodes + self.attention(self.attention_norm(nodes), bias)
        value, gate = self.gate(self.feed_forward_norm(nodes)).chunk(2, -1)
        return nodes + self.output(value * F.silu(gate))


class Encoder(nn.Module):
    """Embeds depot and customers and passes them through `layers` blocks."""

    def __init__(self, block: type[nn.Module], width: int, heads: int, layers: int, *, final_norm: bool) -> None:
        super().__init__()
        self.depot = nn.Linear(2, width)
        self.customer = nn.Linear(3, width)
        self.blocks = nn.ModuleList(block(width, heads) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width) if final_norm else nn.Identity()

    def forward(self, instances: Instances) -> Tensor:
        """Instances of n nodes -> [B, n, d]."""
        dtype = self.depot.weight.dtype
        share = (instances.demand / instances.capacity)[..., None]
        customers = torch.cat([instances.xy[:, 1:], share[:, 1:]], -1).to(dtype)
        nodes = torch.cat([self.depot(instances.xy[:, :1].to(dtype)), self.customer(customers)], 1)
        distance = torch.cdist(instances.xy, instances.xy, compute_mode="donot_use_mm_for_euclid_dist")
        for block in self.blocks:
            nodes = block(nodes, distance)
        return self.final_norm(nodes)


def build_encoder(model: str, width: int, heads: int, layers: int) -> Encoder:
    """Build the encoder of a model by its name."""
    if model == "gt":
        return Encoder(GraphBlock, width, heads, layers, final_norm=True)
    assert model == "am"
    return Encoder(AttentionBlock, width, heads, layers, final_norm=False)
