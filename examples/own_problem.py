"""A routing problem of your own: one courier, who brings each parcel from its sender to its receiver.

`torchyard run examples/own-problem.yaml` trains it. What is not defined here is that of the travelling salesperson.
"""

import torch
from torch import Tensor

from torchyard_trainers.cvrp.problems import Instances, InvalidTourError, Problem, Tours


class Parcels(Problem):
    """Of n nodes, 1 to n // 2 are senders; the receivers follow in the same order."""

    title = "Parcels"
    node_features = 3  # where the other end of the parcel is, and 1 for a receiver

    def nodes(self, customers: int) -> int:
        return customers // 2 * 2 + 1

    def describe_nodes(self, instances: Instances) -> Tensor:
        depot, senders, receivers = instances.xy.split([1, *[instances.xy.shape[1] // 2] * 2], 1)
        receives = torch.cat([torch.zeros_like(depot), torch.zeros_like(senders), torch.ones_like(receivers)], 1)
        return torch.cat([torch.cat([depot, receivers, senders], 1), receives[..., :1]], -1)

    def feasible(self, instances: Instances, state: Tours) -> Tensor:
        options, half = super().feasible(instances, state), instances.xy.shape[1] // 2
        options[..., half + 1 :] &= state.visited[..., 1 : half + 1]
        return options

    def check(self, instances: Instances, moves: Tensor, claimed: Tensor) -> None:
        super().check(instances, moves, claimed)
        senders, receivers = moves.argsort(-1)[..., 1 - instances.xy.shape[1] :].chunk(2, -1)  # when each is visited
        if not bool((senders < receivers).all()):
            raise InvalidTourError("a parcel is delivered before it is collected")
