"""CVRP instances, made on the device from (seed, stream, sample id): the same ones wherever they are asked for."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key, uniform


class Instances(NamedTuple):
    """A batch of problems; node 0 is the depot."""

    xy: Tensor  # [B, n, 2] float32 in the unit square
    demand: Tensor  # [B, n] float32 whole numbers, 0 at the depot
    capacity: Tensor  # [] float32


def generate(
    seed: int,
    stream: str,
    ids: Tensor,
    *,
    customers: int,
    capacity: int,
    distribution: str = "uniform",
    held_out: bool = False,
) -> Instances:
    """Make one instance for each global sample id; none that is held out is one that is not, whatever the seeds.

    The standard of Kool 2019 (`uniform`): depot and customers uniform in the unit square, demands uniform on 1..9.
    `grid-1-10`: coordinates on a 101 x 101 grid and demands 1..10.
    """
    nodes = customers + 1
    keys = sample_keys(stream_key(seed, f"instances/{stream}", held_out=held_out), ids)
    numbers = uniform(split_keys(keys, 3 * nodes))
    xy = numbers[:, : 2 * nodes].reshape(-1, nodes, 2)
    highest = 9
    if distribution == "grid-1-10":
        xy = torch.floor(xy * 101) / 100
        highest = 10
    demand = torch.floor(numbers[:, 2 * nodes :] * highest) + 1
    demand[:, 0] = 0
    # Filled where it lives: a copy from the host would make it wait.
    return Instances(xy, demand, torch.full((), float(capacity), device=ids.device))


def distances(instances: Instances) -> Tensor:
    """Return the Euclidean distance between any two nodes: [B, n, n]."""
    x, y = instances.xy.unbind(-1)
    return ((x[:, :, None] - x[:, None]).square() + (y[:, :, None] - y[:, None]).square()).sqrt()
