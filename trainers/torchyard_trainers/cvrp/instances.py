"""Routing instances, made on the device from (seed, stream, sample id): the same ones wherever they are asked for."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key, uniform


class Instances(NamedTuple):
    """A batch of problems; node 0 is the depot."""

    xy: Tensor  # [B, n, 2] float32 in the unit square
    demand: Tensor  # [B, n] float32 whole numbers, 0 at the depot; 0 where the problem knows none
    capacity: Tensor  # [] float32
    more: Tensor | None = None  # [B, n, K] float32: what else a problem says of its nodes


class Sizes(NamedTuple):
    """What instances are made to."""

    nodes: int  # with the depot
    capacity: int
    distribution: str


Maker = Callable[[Tensor, Sizes], Instances]


def standard(numbers: Tensor, sizes: Sizes) -> Instances:
    """Make CVRP instances of uniform numbers in (0, 1) [B, at least 3 n].

    The standard of Kool 2019 (`uniform`): depot and customers uniform in the unit square, demands uniform on 1..9.
    `grid-1-10`: coordinates on a 101 x 101 grid and demands 1..10.
    """
    nodes = sizes.nodes
    xy = numbers[:, : 2 * nodes].reshape(-1, nodes, 2)
    highest = 9
    if sizes.distribution == "grid-1-10":
        xy = torch.floor(xy * 101) / 100
        highest = 10
    demand = torch.floor(numbers[:, 2 * nodes : 3 * nodes] * highest) + 1
    demand[:, 0] = 0
    # Filled where it lives: a copy from the host would make it wait.
    return Instances(xy, demand, torch.full((), float(sizes.capacity), device=numbers.device))


def generate(
    seed: int,
    stream: str,
    ids: Tensor,
    *,
    customers: int,
    capacity: int,
    distribution: str = "uniform",
    held_out: bool = False,
    draws: int = 3,
    make: Maker = standard,
) -> Instances:
    """Make one instance for each global sample id; none that is held out is one that is not, whatever the seeds.

    Args:
        seed: of the run.
        stream: what the instances are for.
        ids: [B] int64.
        customers: nodes without the depot.
        capacity: of a vehicle.
        distribution: `uniform` or `grid-1-10`.
        held_out: make instances that no training stream can make.
        draws: uniform numbers of which a node is made.
        make: makes instances of [B, draws n] numbers.
    """
    sizes = Sizes(customers + 1, capacity, distribution)
    keys = sample_keys(stream_key(seed, f"instances/{stream}", held_out=held_out), ids)
    return make(uniform(split_keys(keys, draws * sizes.nodes)), sizes)


def distances(instances: Instances) -> Tensor:
    """Return the Euclidean distance between any two nodes: [B, n, n]."""
    x, y = instances.xy.unbind(-1)
    return ((x[:, :, None] - x[:, None]).square() + (y[:, :, None] - y[:, None]).square()).sqrt()
