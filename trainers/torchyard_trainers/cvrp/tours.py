"""The routing problem as tensors: S tours at once for each of B instances, no loop over either, no host round trip."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.core.device import works_on_cpu
from torchyard_trainers.cvrp.instances import Instances


class Tours(NamedTuple):
    """The state of the vehicles."""

    node: Tensor  # [B, S] int64, current node
    load: Tensor  # [B, S] float32, capacity left; whole numbers, so comparisons are exact
    visited: Tensor  # [B, S, n] bool; the depot never counts
    time: Tensor | None = None  # [B, S] float32, when the vehicle leaves the node; None: the problem has no clock


class InvalidTourError(AssertionError):
    """A decoder produced invalid tours: a bug, not a bad result."""


def depart(instances: Instances, samples: int) -> Tours:
    """Return `samples` full vehicles at the depot of each instance."""
    batch, nodes = instances.demand.shape
    device = instances.demand.device
    return Tours(
        torch.zeros(batch, samples, dtype=torch.int64, device=device),
        instances.capacity.repeat(batch, samples),
        torch.zeros(batch, samples, nodes, dtype=torch.bool, device=device),
    )


def served(tours: Tours) -> Tensor:
    """Return which tours have visited every customer: [B, S] bool."""
    return tours.visited[..., 1:].all(-1)


def feasible(instances: Instances, tours: Tours) -> Tensor:
    """Return the nodes that each vehicle may visit next: [B, S, n] bool, never all false.

    Customers not seen yet whose demand fits; the depot unless the vehicle stands there with work left.
    """
    options = ~tours.visited & (instances.demand[:, None, :] <= tours.load[..., None])
    options[..., 0] = (tours.node != 0) | served(tours)
    return options


def visit(instances: Instances, tours: Tours, node: Tensor) -> Tours:
    """Move each vehicle to `node` [B, S]; the depot fills it up."""
    load = torch.where(node == 0, instances.capacity, tours.load - instances.demand.gather(1, node))
    return tours._replace(node=node, load=load, visited=marked(tours.visited, node))


def marked(visited: Tensor, node: Tensor) -> Tensor:
    """Return what is visited [B, S, n] after each vehicle came to `node` [B, S]; the depot never counts."""
    if works_on_cpu(node):
        return visited.scatter(-1, node[..., None], (node != 0)[..., None])
    # A deterministic scatter needs a sort on a GPU; comparing with all nodes does not.
    nodes = torch.arange(visited.shape[-1], device=node.device)
    return visited | ((nodes == node[..., None]) & (nodes != 0))


def join(situations: Sequence[Tours]) -> Tours:
    """Return the states of S tours at T times as S * T vehicles; time is the fastest index."""
    joined = [
        None if parts[0] is None else torch.stack(parts, 2).flatten(1, 2) for parts in zip(*situations, strict=True)
    ]
    return Tours(*joined)


def copied(tours: Tours) -> Tours:
    """Return the same state in memory of its own."""
    return Tours(*(None if part is None else part.clone() for part in tours))


def longest(customers: int) -> int:
    """Return the most moves a tour can need: the depot after every customer."""
    return 2 * customers


def length(instances: Instances, moves: Tensor) -> Tensor:
    """Return the length of tours that start and end at the depot; moves [B, S, T] int64 -> [B, S] float32."""
    batch, samples, _ = moves.shape
    stops = torch.nn.functional.pad(moves, (1, 1))
    xy = instances.xy[:, None].expand(batch, samples, -1, 2)
    places = xy.gather(2, stops[..., None].expand(-1, -1, -1, 2))
    return (places[:, :, 1:] - places[:, :, :-1]).square().sum(-1).sqrt().sum(-1)


def check(instances: Instances, moves: Tensor, claimed: Tensor) -> None:
    """Check that tours are solutions with the stated length, independently of how they were constructed.

    Args:
        instances: B problems.
        moves: [B, S, T] nodes in order of visit.
        claimed: [B, S] lengths.

    Raises:
        InvalidTourError: a customer is missed or seen twice, a vehicle is overloaded, or a length is wrong.
    """
    batch, samples, steps = moves.shape
    check_visits(instances, moves)
    demand = instances.demand[:, None].expand(-1, samples, -1).gather(2, moves)
    carried = torch.zeros(batch, samples, device=moves.device)
    for step in range(steps):
        carried = torch.where(moves[..., step] == 0, 0.0, carried + demand[..., step])
        if (wrong := carried > instances.capacity).any():
            raise InvalidTourError(
                f"{int(wrong.sum())} of {wrong.numel()} tours carry more than the capacity at move {step + 1}"
            )
    check_claim(length(instances, moves), claimed)


def check_visits(instances: Instances, moves: Tensor) -> None:
    """Check that tours [B, S, T] see each customer exactly once.

    Raises:
        InvalidTourError: one does not.
    """
    batch, samples, _ = moves.shape
    counts = torch.zeros(batch, samples, instances.demand.shape[1], dtype=torch.int64, device=moves.device)
    counts.scatter_add_(2, moves, torch.ones_like(moves))
    if (wrong := (counts[..., 1:] != 1).any(-1)).any():
        raise InvalidTourError(f"{int(wrong.sum())} of {wrong.numel()} tours do not see each customer exactly once")


def check_claim(cost: Tensor, claimed: Tensor) -> None:
    """Check that tours cost what is claimed, both [B, S].

    Raises:
        InvalidTourError: one does not.
    """
    if not torch.allclose(cost, claimed.float(), rtol=1e-4, atol=1e-4):
        raise InvalidTourError("claimed lengths differ from the lengths of the tours")
