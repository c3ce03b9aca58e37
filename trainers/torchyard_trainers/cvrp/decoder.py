"""The pointer decoder: where a vehicle goes next, for any number of situations at once (Kool, van Hoof, Welling 2019).

A situation is a vehicle somewhere on its way. While routes are built there is one for each route; afterwards all
situations of all routes are looked at again together, for their likelihoods, with no loop over time.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchyard_trainers.core.device import works_on_cpu
from torchyard_trainers.cvrp import tours
from torchyard_trainers.cvrp.instances import Instances
from torchyard_trainers.cvrp.problems.interface import Problem

TANH_CLIP = 10.0
FEATURES = 4
RANK = 8


class Memory(NamedTuple):
    """What the decoder remembers of B instances of n nodes: computed once, read in every situation."""

    queries: Tensor  # [B, n, d] of a vehicle at this node, but for its features
    keys: Tensor  # [B, H, n, d / H] of the glimpse
    values: Tensor  # [B, H, n, d / H] of the glimpse
    pointers: Tensor  # [B, n, d]
    tables: "Tables | None"

    def detach(self) -> "Memory":
        """Cut it off from its gradient."""
        tables = None if self.tables is None else Tables(*(part.detach() for part in self.tables))
        return Memory(*(part.detach() for part in self[:4]), tables)


class Tables(NamedTuple):
    """Products of a memory's parts. Of few nodes, looking products up is cheaper than multiplying again each time."""

    scores: Tensor  # [B, n, H n] queries with keys: row i for a vehicle at node i
    context_scores: Tensor  # [B, C, H n] of the features of a vehicle with keys
    pointers: Tensor  # [B, H n, n] values with pointers


class Decoder(nn.Module):
    """One glimpse over the nodes a vehicle may go to, then a pointer to one of them."""

    def __init__(self, width: int, heads: int, problem: Problem) -> None:
        super().__init__()
        self.heads, self.problem = heads, problem
        self.node_inputs = nn.Linear(width, 3 * width, bias=False)
        self.graph_context = nn.Linear(width, width, bias=False)
        self.node_context = nn.Linear(width, width, bias=False)
        contexts = torch.empty(problem.vehicle_features, width)
        self.vehicle_context = nn.Parameter(contexts.uniform_(-(width**-0.5), width**-0.5))
        self.glimpse = nn.Linear(width, width, bias=False)

    def remember(self, nodes: Tensor) -> Memory:
        """[B, n, d] -> what does not change along the way.

        The projection after the glimpse meets the pointers in every situation, so it is folded into them.
        """
        to_keys, to_values, to_pointers = self.node_inputs.weight.chunk(3)
        folded = torch.cat([to_keys, to_values, self.glimpse.weight.T @ to_pointers, self.node_context.weight])
        keys, values, pointers, queries = F.linear(nodes, folded.to(nodes.dtype)).chunk(4, -1)
        queries = queries + self.graph_context(nodes.mean(1, keepdim=True))
        memory = Memory(queries, self._by_head(keys), self._by_head(values), pointers, None)
        return memory._replace(tables=self._tabulate(memory)) if self._pays(nodes) else memory

    def _pays(self, nodes: Tensor) -> bool:
        """Whether tables save work: a situation costs H n n products with them, 2 d n without."""
        return nodes.shape[1] * self.heads <= 2 * nodes.shape[2]

    def _tabulate(self, memory: Memory) -> Tables:
        batch, nodes, _ = memory.queries.shape
        scale = memory.keys.shape[-1] ** -0.5
        keys = memory.keys.transpose(2, 3) * scale
        context = self.vehicle_context.to(keys.dtype).unflatten(1, (self.heads, -1)).transpose(0, 1)  # [H, C, d / H]
        scores = self._by_head(memory.queries) @ keys
        pointers = memory.values @ self._by_head(memory.pointers).transpose(2, 3)
        return Tables(
            scores.transpose(1, 2).reshape(batch, nodes, -1),
            (context @ keys).transpose(1, 2).reshape(batch, len(self.vehicle_context), -1),
            pointers.reshape(batch, -1, nodes),
        )

    def forward(self, memory: Memory, instances: Instances, state: tours.Tours) -> Tensor:
        """Score the next node of each vehicle: [B, S, n] float32, -inf where it may not go."""
        options = self.problem.feasible(instances, state)
        if memory.tables is not None:
            return self._clip(self._look_up(memory.tables, instances, state, options), options)
        query = self._by_head(self._query(memory, instances, state))
        mixed = F.scaled_dot_product_attention(query, memory.keys, memory.values, attn_mask=options[:, None])
        return self._clip(mixed.transpose(1, 2).flatten(2) @ memory.pointers.transpose(1, 2), options)

    def _look_up(self, tables: Tables, instances: Instances, state: tours.Tours, options: Tensor) -> Tensor:
        features = self.problem.describe_vehicles(instances, state).to(tables.scores.dtype)
        # A product where there is a gradient, since that is one too; of `addcmul` it is a sum over a tensor as large as
        # all scores. Elsewhere a pass over all is cheaper than a small product for each instance.
        learns = tables.context_scores.requires_grad or len(self.vehicle_context) > 1
        combine = torch.baddbmm if learns else torch.addcmul
        scores = combine(rows(tables.scores, state.node), features, tables.context_scores)
        scores = scores.float().unflatten(-1, (self.heads, -1)) + penalty(options)[:, :, None]
        return scores.softmax(-1).flatten(2).to(tables.pointers.dtype) @ tables.pointers

    def _query(self, memory: Memory, instances: Instances, state: tours.Tours) -> Tensor:
        """Where a vehicle is and its features, as a query: [B, S, d]."""
        here = rows(memory.queries, state.node)
        features = self.problem.describe_vehicles(instances, state).to(here.dtype)
        if len(self.vehicle_context) > 1:
            return here + features @ self.vehicle_context.to(here.dtype)
        return torch.addcmul(here, features, self.vehicle_context.to(here.dtype))

    def _clip(self, scores: Tensor, options: Tensor) -> Tensor:
        width = self.glimpse.weight.shape[0]
        return torch.add(penalty(options), torch.tanh(scores.float() / math.sqrt(width)), alpha=TANH_CLIP)

    def _by_head(self, vectors: Tensor) -> Tensor:
        """[B, k, d] -> [B, H, k, d / H]."""
        return vectors.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def rows(table: Tensor, node: Tensor) -> Tensor:
    """Look nodes [B, S] up in a table of each instance: [B, n, k] -> [B, S, k].

    An embedding copies whole rows and adds its gradients row by row, where `gather` would do so number by number. On a
    GPU it sorts the nodes first, to add in order, and a product with a one in each row is cheaper than that.
    """
    batch, nodes, _ = table.shape
    if table.requires_grad and not works_on_cpu(table):
        ones = torch.arange(nodes, device=node.device) == node[..., None]
        return ones.to(table.dtype) @ table
    first = torch.arange(0, batch * nodes, nodes, device=node.device)
    return F.embedding(node + first[:, None], table.flatten(0, 1))


def penalty(options: Tensor) -> Tensor:
    """Return 0 where a vehicle may go, -inf where it may not; cheaper to add to every head than to fill each masked."""
    return torch.where(options, 0.0, -torch.inf)


class DynamicDecoder(Decoder):
    """A decoder that sees every node in every situation: what is done, what fits, how far it is from here.

    Keys, values and pointers become `k + A g`, `v + B g` and `p + C g`, with g [RANK] a small network of a node's
    features in this situation. Products with them come apart (`q (k + A g) = q k + (A' q) g`), so that no embedding is
    ever written out for each situation: memory stays [B, S, n, RANK] instead of [B, S, n, 3 d].
    """

    def __init__(self, width: int, heads: int, problem: Problem) -> None:
        super().__init__(width, heads, problem)
        self.features = nn.Linear(FEATURES, RANK)
        self.renewal = nn.Linear(RANK, 3 * width, bias=False)

    def _pays(self, _nodes: Tensor) -> bool:
        return False  # no two situations have the same products

    def forward(self, memory: Memory, instances: Instances, state: tours.Tours) -> Tensor:
        """See `Decoder.forward`."""
        options = self.problem.feasible(instances, state)
        query = self._query(memory, instances, state)
        news = F.silu(self.features(self._look(instances, state, options).to(query.dtype)))
        to_keys, to_values, to_pointers = self.renewal.weight.chunk(3, 0)
        by_head = query.unflatten(-1, (self.heads, -1))  # [B, S, H, d / H]
        scores = (by_head.transpose(1, 2) @ memory.keys.transpose(2, 3)).transpose(1, 2)
        scores = scores + torch.einsum("bshd,hdr->bshr", by_head, self._split(to_keys)) @ news.transpose(2, 3)
        scores = (scores.float() * by_head.shape[-1] ** -0.5).masked_fill(~options[:, :, None], -torch.inf)
        attention = scores.softmax(-1).to(query.dtype)  # [B, S, H, n]
        mixed = (attention.transpose(1, 2) @ memory.values).transpose(1, 2)
        mixed = mixed + torch.einsum("bshr,hdr->bshd", attention @ news, self._split(to_values))
        mixed = mixed.flatten(2)
        scores = mixed @ memory.pointers.transpose(1, 2)
        scores = scores + (news @ (mixed @ to_pointers)[..., None])[..., 0]
        return self._clip(scores, options)

    def _split(self, renewal: Tensor) -> Tensor:
        """[d, RANK] -> [H, d / H, RANK]."""
        return renewal.unflatten(0, (self.heads, -1))

    @staticmethod
    def _look(instances: Instances, state: tours.Tours, options: Tensor) -> Tensor:
        """Features of each node in a situation: [B, S, n, FEATURES] float32.

        Whether it is done, whether the vehicle may go there, how far it is, and what would be left of the load.
        """
        here = instances.xy.gather(1, state.node[..., None].expand(-1, -1, 2))
        distance = (here[:, :, None] - instances.xy[:, None]).square().sum(-1).sqrt()
        left = (state.load[..., None] - instances.demand[:, None]) / instances.capacity
        return torch.stack([state.visited.float(), options.float(), distance, left], -1)
