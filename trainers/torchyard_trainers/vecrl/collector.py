"""This rank's environments, and the rollout that the next optimizer steps learn from.

A rollout is a pure function of (weights, environment state, rollout number). Checkpoints are saved between rollouts, so
that none is part of one. Statistics of observations and rewards are renewed between rollouts as well.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.frozen import frozen
from torchyard_trainers.core.graphs import Graphed
from torchyard_trainers.core.parallel import compile_blocks
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key, uniform
from torchyard_trainers.core.workload import Session
from torchyard_trainers.rl.environment import Environment, State
from torchyard_trainers.rl.normalization import Moments, Normalization, discounted, scaled, sums_of
from torchyard_trainers.rl.rollout import (
    FACTS,
    Rollout,
    Tick,
    act,
    draw_noise,
    evaluate_trajectory,
    gather_rows,
    sample_ids_of,
    tick,
)
from torchyard_trainers.vecrl.environments import build_environment
from torchyard_trainers.vecrl.params import Settings
from torchyard_trainers.vecrl.policy import Policy


class Collector:
    """Environments [rank::world], played by an unsharded copy of the policy under every training strategy."""

    def __init__(self, settings: Settings, policy: Policy) -> None:
        """Copy `policy`, which must not be sharded yet, and reset every environment."""
        self._settings = settings
        # Sharded weights would be gathered at each step of the environments, and a CUDA graph needs weights in one
        # place. Its values are those in training at the start of each rollout, so it is no part of a checkpoint.
        self.actor = frozen(policy)
        environment = build_environment(settings, torch.device("cpu"))
        keys = sample_keys(stream_key(settings.seed, "start"), torch.arange(settings.environments))
        self._state: State = environment.reset(uniform(split_keys(keys, environment.draws)))
        self._running = torch.zeros(settings.environments, environment.agents)
        self._observations = Moments(environment.observed) if settings.normalize_observations else None
        self._returns = Moments(1) if settings.normalize_rewards else None
        self._discounted = torch.zeros(settings.environments, environment.agents, dtype=torch.float64)
        self._environment: Environment | None = None
        self._play = Graphed(self._played, wanted=settings.compile)
        self._step: Callable[..., Tick] = tick
        self._held: tuple[Played, dict[str, float]] | None = None

    def state(self) -> dict[str, Any]:
        """Return the state from which the next rollout starts; a restore fills it in place."""
        state: dict[str, Any] = {"environments": self._state, "running": self._running}
        if self._observations is not None:
            state["observations"] = self._observations.state()
        if self._returns is not None:
            state |= {"returns": self._returns.state(), "discounted": self._discounted}
        return state

    def environment(self, session: Session) -> Environment:
        """Return the environment on the session's device."""
        if self._environment is None:
            device = session.world.device
            self._environment = build_environment(self._settings, device)
            self.actor.to(device)
            self._state = {name: tensor.to(device) for name, tensor in self._state.items()}
            self._running, self._discounted = self._running.to(device), self._discounted.to(device)
            if self._settings.compile:
                compile_blocks([])  # raises an error if there is no compiler
                self._step = torch.compile(tick, dynamic=False)
        return self._environment

    @property
    def rollout(self) -> tuple[Rollout, dict[str, float]]:
        """The rollout in use, of this rank, and its facts over all ranks."""
        assert self._held is not None, "a rollout is prepared before its steps"
        played, facts = self._held
        return played.rollout, facts

    def prepare(self, session: Session, number: int) -> None:
        """Play rollout `number` with the weights of now. Collective.

        The first rollout is played twice if anything is normalised: before, there are no statistics to do so.
        """
        self._held = None  # never two at once
        session.parallel.copy_to(self.actor)
        if any(not float(each.count) for each in (self._observations, self._returns) if each is not None):
            self._renew(session, self.play(session, number))
            session.parallel.copy_to(self.actor)
        played = self.play(session, number)
        facts = session.world.total(played.rollout.facts.clone()).tolist()
        self._held = played, dict(zip(FACTS, facts, strict=True))

    def finish(self, session: Session) -> dict[str, float]:
        """Go on to where the rollout ended; return its facts over all ranks. Collective."""
        assert self._held is not None, "a rollout is prepared before its steps"
        played, facts = self._held
        count = self._settings.environments
        state = played.rollout.trajectory.state
        self._state = {name: gather_rows(tensor, session.world, count) for name, tensor in state.items()}
        self._running = gather_rows(played.rollout.running, session.world, count)
        self._discounted = gather_rows(played.discounted, session.world, count)
        self._renew(session, played)
        self._held = None
        return facts

    @torch.no_grad()
    def play(self, session: Session, number: int) -> "Played":
        """Play rollout `number` of this rank's environments with the weights of the last `prepare`."""
        settings, world = self._settings, session.world
        self.environment(session)
        (slots,) = split(settings.environments, world.size, world.rank)
        ids = torch.tensor(slots.positions, device=world.device)
        state = {name: tensor[ids] for name, tensor in self._state.items()}
        sample_ids = sample_ids_of(settings, ids, number * settings.horizon)
        weights = torch.tensor(slots.weights, device=world.device)
        mean = self._observations.mean.to(world.device) if self._observations is not None else None
        returns = self._returns
        scale = torch.stack([returns.mean, returns.deviation()]).to(world.device) if returns is not None else None
        with session.precision.forward():
            start = Start(state, self._running[ids], self._discounted[ids])
            return self._play(start, sample_ids, weights, mean, scale)

    def _played(
        self, start: "Start", sample_ids: Tensor, weights: Tensor, mean: Tensor | None, scale: Tensor | None
    ) -> "Played":
        state, running, unfinished = start
        actor, environment, settings = self.actor, self._environment, self._settings
        assert environment is not None
        trajectory = act(actor, environment, state, draw_noise(settings, environment, sample_ids), step=self._step)
        observations = sums_of(trajectory.observation, mean) if mean is not None else None
        returns = reward = None
        if scale is not None:
            sums, unfinished = discounted(trajectory.reward, trajectory.terminated, unfinished, settings.gamma)
            returns, reward = sums_of(sums, scale[0]), scaled(trajectory.reward, scale[1])
        rollout = evaluate_trajectory(
            actor, environment, trajectory, running=running, weights=weights, settings=settings, reward=reward
        )
        return Played(rollout, unfinished, observations, returns)

    def _renew(self, session: Session, played: "Played") -> None:
        """Add a rollout to the statistics, and normalise by them from now on. Collective."""
        settings, world = self._settings, session.world
        each = settings.horizon * self.environment(session).agents
        if self._returns is not None:
            assert played.returns is not None
            self._returns.merge(played.returns, world, settings.environments, each)
        if self._observations is not None:
            assert played.observations is not None
            self._observations.merge(played.observations, world, settings.environments, each)
            for layer in session.parallel.module.modules():
                if isinstance(layer, Normalization):
                    layer.shift.copy_(self._observations.mean)
                    layer.scale.copy_(1 / self._observations.deviation())


class Start(NamedTuple):
    """Where n environments are when a rollout begins.

    Attributes:
        state: of the environments.
        running: [n, A] return so far of unfinished episodes.
        discounted: [n, A] float64 sums of their rewards.
    """

    state: State
    running: Tensor
    discounted: Tensor


class Played(NamedTuple):
    """A rollout with what its statistics need.

    Attributes:
        rollout: of this rank.
        discounted: [n, A] float64 sums of rewards of unfinished episodes.
        observations: [n, 2, D], see `sums_of`; None: they are not normalised.
        returns: [n, 2, 1], of discounted returns; None: rewards are not normalised.
    """

    rollout: Rollout
    discounted: Tensor
    observations: Tensor | None
    returns: Tensor | None
