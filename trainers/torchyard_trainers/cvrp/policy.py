"""A policy over routes: encode an instance once, then choose one node after the other (Kool, van Hoof, Welling 2019).

The whole construction is one `forward`, so that data-parallel wrappers and sharding see one call a micro-batch.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchyard_trainers.core.randomness import gumbel, split_keys
from torchyard_trainers.cvrp import tours
from torchyard_trainers.cvrp.encoders import build_encoder
from torchyard_trainers.cvrp.instances import Instances

TANH_CLIP = 10.0


class Routes(NamedTuple):
    """Solutions and how likely the policy is to choose them."""

    cost: Tensor  # [B, S] float32 tour lengths, no gradient
    log_likelihood: Tensor  # [B, S] float32, with gradient
    moves: Tensor  # [B, S, T] int64


class Policy(nn.Module):
    """Encoder `am` or `gt` with a pointer decoder."""

    def __init__(self, model: str, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.encoder = build_encoder(model, width, heads, layers)
        self.node_inputs = nn.Linear(width, 3 * width, bias=False)
        self.graph_context = nn.Linear(width, width, bias=False)
        self.step_context = nn.Linear(width + 1, width, bias=False)
        self.glimpse = nn.Linear(width, width, bias=False)

    def forward(self, instances: Instances, keys: Tensor | None = None) -> Routes:
        """Construct routes.

        Args:
            instances: B problems.
            keys: [B, S] random keys: S sampled routes an instance, each a function of its key alone. None: one greedy
            route.
        """
        samples = 1 if keys is None else keys.shape[1]
        nodes = self.encoder(instances)
        glimpse_keys, glimpse_values, pointers = self.node_inputs(nodes).chunk(3, -1)
        glimpse_keys, glimpse_values = self._by_head(glimpse_keys), self._by_head(glimpse_values)
        context = self.graph_context(nodes.mean(1, keepdim=True))
        state = tours.depart(instances, samples)
        moves, likelihoods = [], []
        for step in range(tours.longest(instances.demand.shape[1] - 1)):
            options = tours.feasible(instances, state)
            query = context + self.step_context(self._situation(instances, nodes, state))
            mixed = F.scaled_dot_product_attention(
                self._by_head(query), glimpse_keys, glimpse_values, attn_mask=options[:, None]
            )
            query = self.glimpse(mixed.transpose(1, 2).flatten(2))
            scores = (query @ pointers.transpose(1, 2)).float() / math.sqrt(query.shape[-1])
            logits = (TANH_CLIP * torch.tanh(scores)).masked_fill(~options, -torch.inf)
            node = _choose(logits.detach(), keys, step)
            likelihoods.append(F.log_softmax(logits, -1).gather(-1, node[..., None])[..., 0])
            moves.append(node)
            state = tours.visit(instances, state, node)
            # On a CPU it costs nothing to see that all vehicles are home; further moves would stay there with
            # probability 1.
            if node.device.type == "cpu" and bool((tours.served(state) & (state.node == 0)).all()):
                break
        taken = torch.stack(moves, -1)
        return Routes(tours.length(instances, taken), torch.stack(likelihoods, -1).sum(-1), taken)

    def _by_head(self, vectors: Tensor) -> Tensor:
        """[B, k, d] -> [B, H, k, d / H]."""
        return vectors.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _situation(self, instances: Instances, nodes: Tensor, state: tours.Tours) -> Tensor:
        """Where a vehicle is and the share of its capacity left: [B, S, d + 1]."""
        here = nodes.gather(1, state.node[..., None].expand(-1, -1, nodes.shape[-1]))
        share = (state.load / instances.capacity)[..., None].to(nodes.dtype)
        return torch.cat([here, share], -1)


def _choose(logits: Tensor, keys: Tensor | None, step: int) -> Tensor:
    """Take the most likely node, or sample with noise that belongs to (sample, step, node): [B, S, n] -> [B, S]."""
    if keys is None:
        return logits.argmax(-1)
    noise = gumbel(split_keys(split_keys(keys, 1, offset=step)[..., 0], logits.shape[-1]))
    return (logits + noise).argmax(-1)
