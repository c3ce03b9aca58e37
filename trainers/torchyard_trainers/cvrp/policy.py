"""A policy over routes: encode an instance once, then choose one node after the other (Kool, van Hoof, Welling 2019).

The whole construction is one `forward`, so that data-parallel wrappers and sharding see one call a micro-batch.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional

from torchyard_trainers.core.device import can_sync, only_shapes
from torchyard_trainers.core.graphs import Graphed
from torchyard_trainers.core.randomness import split_keys, uniform
from torchyard_trainers.cvrp import tours
from torchyard_trainers.cvrp.decoder import Decoder, DynamicDecoder, Memory
from torchyard_trainers.cvrp.encoders import build_encoder
from torchyard_trainers.cvrp.instances import Instances
from torchyard_trainers.cvrp.problems import Cvrp, Problem

P = ParamSpec("P")
T = TypeVar("T")


class Routes(NamedTuple):
    """Solutions, and how likely the policy is to choose them."""

    cost: Tensor  # [B, S] float32 of the problem, tour lengths as a rule; no gradient
    moves: Tensor  # [B, S, T] int64
    log_likelihood: Tensor | None = None  # [B, S] float32, with gradient, if asked for
    expected: Tensor | None = (
        None  # [B, 1] float32, with gradient: the critic's guess of the mean length, if there is one
    )


class Policy(nn.Module):
    """An encoder with a pointer decoder, and a critic if one is wanted."""

    def __init__(
        self,
        model: str,
        width: int,
        heads: int,
        layers: int,
        *,
        critic: bool = False,
        compiled: bool = False,
        problem: Problem | None = None,
    ) -> None:
        super().__init__()
        self.problem = problem = Cvrp() if problem is None else problem
        self._compiled = compiled
        self._graphed: Graphed[..., tuple[Tensor, list[tours.Tours]]] | None = None
        self.encoder = build_encoder(model, width, heads, layers, problem)
        self.decoder = (DynamicDecoder if model == "dgt" else Decoder)(width, heads, problem)
        self.critic = Critic(width) if critic else None

    def forward(
        self,
        instances: Instances,
        keys: Tensor | None = None,
        *,
        likelihood: bool = False,
        starts: Tensor | None = None,
    ) -> Routes:
        """Construct routes, without gradient; then, if asked for, their likelihood with gradient.

        The likelihood of all choices is computed at once, from the situations that construction went through: the
        gradient of REINFORCE needs no graph through a loop.

        Args:
            instances: B problems.
            keys: [B, S] random keys: S sampled routes an instance, each a function of its key alone. None: greedy
                routes.
            likelihood: whether to give `log_likelihood`.
            starts: [S] customers that the routes of each instance visit first, which is then no choice of the policy
                (POMO, Kwon 2020); the first that may be visited takes the place of one that may not. None: the policy
                chooses; greedy routes are one an instance.
        """
        nodes = self.encoder(instances)
        memory = self.decoder.remember(nodes)
        moves, situations = self._constructor()(instances, memory.detach(), keys, starts)
        routes = Routes(
            self.problem.cost(instances, moves), moves.clone()
        )  # a graph writes its next ones in the same place
        if not likelihood:
            return routes
        scores = hastened(likelihood_of, memory.queries, compiled=self._compiled)
        expected = None if self.critic is None else self.critic(nodes.detach(), instances)
        if starts is not None:
            moves, situations = moves[..., 1:], situations[1:]
        chosen = scores(self.decoder, memory, instances, tours.join(situations), moves)
        return routes._replace(log_likelihood=chosen, expected=expected)

    def _constructor(self) -> Callable[..., tuple[Tensor, list[tours.Tours]]]:
        """Return `construct`, as a CUDA graph where weights keep their address: gathered shards do not.

        The graph is created on first use, because copies of a policy must not share it.
        """
        if isinstance(self, FSDPModule):
            return self.construct
        if self._graphed is None:
            self._graphed = Graphed(self.construct, wanted=self._compiled)
        return self._graphed

    @torch.no_grad()
    def construct(
        self, instances: Instances, memory: Memory, keys: Tensor | None, starts: Tensor | None
    ) -> tuple[Tensor, list[tours.Tours]]:
        """Return the moves [B, S, T] and the T situations they were made in."""
        most = self.problem.longest(instances.demand.shape[1])
        noise = None if keys is None else uniform(split_keys(keys, most)).double().movedim(-1, 0).contiguous()
        samples = keys.shape[1] if keys is not None else 1 if starts is None else len(starts)
        state = self.problem.depart(instances, samples)
        # Greedy routes are one an instance: too little work to be worth a compilation.
        go = go_on if noise is None else hastened(go_on, memory.queries, compiled=self._compiled)
        moves, situations = [], []
        for step in range(most):
            situations.append(state)
            if starts is not None and not step:
                node = starts.expand(len(instances.demand), -1)
                options = self.problem.feasible(instances, state)
                node = torch.where(options.gather(-1, node[..., None])[..., 0], node, options.int().argmax(-1))
                state = self.problem.visit(instances, state, node)
            elif only_shapes() and 1 < step < most - 1:  # each move takes what the one before it takes
                state = tours.copied(state)
                node = state.node
            else:
                node, state = go(self.decoder, memory, instances, state, None if noise is None else noise[step])
            moves.append(node)
            # On a CPU it costs nothing to see that all vehicles are home; further moves would stay there with
            # probability 1.
            if can_sync(node) and bool(self.problem.ended(state).all()):
                break
        return torch.stack(moves, -1), situations


def go_on(
    decoder: Decoder, memory: Memory, instances: Instances, state: tours.Tours, noise: Tensor | None
) -> tuple[Tensor, tours.Tours]:
    """Choose the next node [B, S] of each vehicle and move there: the likeliest, or sampled at `noise` [B, S]."""
    logits = decoder(memory, instances, state)
    node = logits.argmax(-1) if noise is None else draw(logits, noise)
    return node, decoder.problem.visit(instances, state, node)


def likelihood_of(
    decoder: Decoder, memory: Memory, instances: Instances, situations: tours.Tours, moves: Tensor
) -> Tensor:
    """Return the log-likelihood of moves [B, S, T] in their situations, S * T an instance: [B, S]."""
    logits = decoder(memory, instances, situations)
    surprise = functional.cross_entropy(logits.flatten(0, 1), moves.flatten(), reduction="none")
    return -surprise.view(moves.shape).sum(-1)


def hastened(act: Callable[P, T], tensor: Tensor, *, compiled: bool) -> Callable[P, T]:
    """Return `act` compiled, if it is asked for and the tensor is on a GPU.

    On a CPU routes have another number of moves each time, and each is compiled again, for a few per cent.
    """
    return _compiled(act) if compiled and tensor.is_cuda else act


@functools.cache
def _compiled(act: Callable[P, T]) -> Callable[P, T]:
    return torch.compile(act, dynamic=False)


class Critic(nn.Module):
    """Expects the mean length of the policy's routes, as a share of the distances from the depot to all customers.

    No route is longer than twice the sum of distances from the depot, so shares lie between 0 and 2.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, 1))

    def forward(self, nodes: Tensor, instances: Instances) -> Tensor:
        """[B, n, d] -> [B, 1] float32."""
        ways = (instances.xy[:, 1:] - instances.xy[:, :1]).square().sum(-1).sqrt().sum(-1, keepdim=True)
        return ways * (1 + self.layers(nodes).float().mean(1))


def draw(logits: Tensor, noise: Tensor) -> Tensor:
    """Sample from the softmax of logits [B, S, n] by its inverse distribution function at `noise` [B, S] in (0, 1).

    Probabilities are counted in units of 2**-30: sums of whole numbers are exact, the same on every device, and what
    has none is never chosen.
    """
    # As a product with ones: exact as well, and `cumsum` over a few numbers takes a GPU twenty times as long.
    count = logits.shape[-1]
    ones = torch.ones(count, count, dtype=torch.float64, device=logits.device).triu()
    cumulated = (logits.softmax(-1) * 2**30).floor().double() @ ones
    threshold = (noise * cumulated[..., -1]).floor()  # below the sum, since noise is below 1
    return (cumulated > threshold[..., None]).int().argmax(-1)
