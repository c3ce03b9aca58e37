"""This rank's environments and its copy of the policy that acts: rollouts on demand, and the state to repeat them.

A rollout is a function of (acting weights, state of the environments, number of the rollout). A checkpoint holds those
and never the rollout itself: a run that resumes between two of its minibatches plays it again, bit for bit.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.frozen import frozen
from torchyard_trainers.core.graphs import Graphed, is_plain
from torchyard_trainers.core.parallel import compile_blocks
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key, uniform
from torchyard_trainers.core.workload import Session
from torchyard_trainers.core.world import World
from torchyard_trainers.vecrl.environment import Environment, State
from torchyard_trainers.vecrl.environments import build_environment
from torchyard_trainers.vecrl.params import Settings
from torchyard_trainers.vecrl.policy import Policy
from torchyard_trainers.vecrl.rollout import FACTS, Rollout, Tick, act, judge, luck, moments_of, tick


class Collector:
    """Environments [rank::world] of all, under a plain copy of the policy, whatever the strategy of training."""

    def __init__(self, settings: Settings, policy: Policy) -> None:
        """Take a policy that is not yet sharded, and start every environment."""
        self._settings = settings
        self.actor = frozen(policy)
        environment = build_environment(settings, torch.device("cpu"))
        keys = sample_keys(stream_key(settings.seed, "start"), torch.arange(settings.environments))
        self._state: State = environment.reset(uniform(split_keys(keys, environment.draws)))
        self._running = torch.zeros(settings.environments, environment.agents)
        self._environment: Environment | None = None
        self._play = Graphed(self._played, wanted=settings.compile)
        self._step: Callable[..., Tick] = tick
        self._collected: tuple[tuple[int, bool], Rollout, dict[str, float]] | None = None

    def state(self) -> dict[str, Any]:
        """Give what a checkpoint must hold: where the newest rollout began. A restore fills it in place."""
        return {"actor": self.actor.state_dict(), "environments": self._state, "running": self._running}

    def environment(self, session: Session) -> Environment:
        """Give the environment on the session's device."""
        if self._environment is None:
            device = session.world.device
            self._environment = build_environment(self._settings, device)
            self.actor.to(device)
            self._state = {name: tensor.to(device) for name, tensor in self._state.items()}
            self._running = self._running.to(device)
            if self._settings.compile:
                compile_blocks([])  # says so if there is no compiler
                self._step = torch.compile(tick, dynamic=False)
        return self._environment

    def rollout(self, session: Session, number: int) -> tuple[Rollout, dict[str, float]]:
        """Give rollout `number` of this rank and its facts over all ranks; it is played if it was not yet.

        Collective when it is played: all ranks ask for it at the same point.
        """
        # Code as it is written and what is compiled of it may differ in the last bits; a resumed run has the latter.
        key = number, self._settings.compile and is_plain()
        if self._collected is None or self._collected[0] != key:
            self._collected = None  # never two at once
            rollout = self.play(session, number)
            facts = session.world.total(rollout.facts.clone()).tolist()
            collected = key, rollout, dict(zip(FACTS, facts, strict=True))
            if not all(map(math.isfinite, facts)):  # a run that goes back to a checkpoint shall not find it again
                return collected[1:]
            self._collected = collected
        return self._collected[1:]

    def advance(self, session: Session, number: int) -> dict[str, float]:
        """Let rollout `number` start where the one before it ended, under the weights of now; give facts of that one.

        Collective.
        """
        rollout, facts = self.rollout(session, number - 1)
        count = self._settings.environments
        self._state = {name: everywhere(tensor, session.world, count) for name, tensor in rollout.path.state.items()}
        self._running = everywhere(rollout.running, session.world, count)
        session.parallel.copy_to(self.actor)
        self._collected = None
        return facts

    @torch.no_grad()
    def play(self, session: Session, number: int) -> Rollout:
        """Play rollout `number` of this rank's environments from where the newest one began."""
        settings, world = self._settings, session.world
        self.environment(session)
        (slots,) = split(settings.environments, world.size, world.rank)
        ids = torch.tensor(slots.positions, device=world.device)
        state = {name: tensor[ids] for name, tensor in self._state.items()}
        moments = moments_of(settings, ids, number * settings.horizon)
        weights = torch.tensor(slots.weights, device=world.device)
        with session.precision.forward():
            return self._play(state, moments, self._running[ids], weights)

    def _played(self, state: State, moments: Tensor, running: Tensor, weights: Tensor) -> Rollout:
        environment, settings = self._environment, self._settings
        assert environment is not None
        path = act(self.actor, environment, state, luck(settings, environment, moments), step=self._step)
        return judge(self.actor, environment, path, running=running, weights=weights, settings=settings)


def everywhere(own: Tensor, world: World, count: int) -> Tensor:
    """Put the rows [rank::world] of all ranks together, on every rank: [n, ...] -> [count, ...], bit for bit."""
    if world.size == 1:
        return own.clone()  # a graph writes its next rollout in the same place
    real = len(range(world.rank, count, world.size))
    bits = own.view(torch.int32) if own.dtype == torch.float32 else own
    whole = torch.zeros(count, *own.shape[1:], dtype=torch.int64, device=own.device)
    whole[world.rank :: world.size] = bits[:real].long()
    return world.total(whole).to(bits.dtype).view(own.dtype)
