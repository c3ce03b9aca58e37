"""This rank's environments, and the rollout that the next optimizer steps learn from.

A rollout is a pure function of (weights, environment state, rollout number). Checkpoints are saved between rollouts, so
that none is part of one.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.frozen import frozen
from torchyard_trainers.core.graphs import Graphed
from torchyard_trainers.core.parallel import compile_blocks
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key, uniform
from torchyard_trainers.core.workload import Session
from torchyard_trainers.rl.environment import Environment, State
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
        self._environment: Environment | None = None
        self._play = Graphed(self._played, wanted=settings.compile)
        self._step: Callable[..., Tick] = tick
        self._held: tuple[Rollout, dict[str, float]] | None = None

    def state(self) -> dict[str, Any]:
        """Return the state from which the next rollout starts; a restore fills it in place."""
        return {"environments": self._state, "running": self._running}

    def environment(self, session: Session) -> Environment:
        """Return the environment on the session's device."""
        if self._environment is None:
            device = session.world.device
            self._environment = build_environment(self._settings, device)
            self.actor.to(device)
            self._state = {name: tensor.to(device) for name, tensor in self._state.items()}
            self._running = self._running.to(device)
            if self._settings.compile:
                compile_blocks([])  # raises an error if there is no compiler
                self._step = torch.compile(tick, dynamic=False)
        return self._environment

    @property
    def rollout(self) -> tuple[Rollout, dict[str, float]]:
        """The rollout in use, of this rank, and its facts over all ranks."""
        assert self._held is not None, "a rollout is prepared before its steps"
        return self._held

    def prepare(self, session: Session, number: int) -> None:
        """Play rollout `number` with the weights of now. Collective."""
        self._held = None  # never two at once
        session.parallel.copy_to(self.actor)
        rollout = self.play(session, number)
        facts = session.world.total(rollout.facts.clone()).tolist()
        self._held = rollout, dict(zip(FACTS, facts, strict=True))

    def finish(self, session: Session) -> dict[str, float]:
        """Go on to where the rollout ended; return its facts over all ranks. Collective."""
        rollout, facts = self.rollout
        count = self._settings.environments
        state = rollout.trajectory.state
        self._state = {name: gather_rows(tensor, session.world, count) for name, tensor in state.items()}
        self._running = gather_rows(rollout.running, session.world, count)
        self._held = None
        return facts

    @torch.no_grad()
    def play(self, session: Session, number: int) -> Rollout:
        """Play rollout `number` of this rank's environments with the weights of the last `prepare`."""
        settings, world = self._settings, session.world
        self.environment(session)
        (slots,) = split(settings.environments, world.size, world.rank)
        ids = torch.tensor(slots.positions, device=world.device)
        state = {name: tensor[ids] for name, tensor in self._state.items()}
        sample_ids = sample_ids_of(settings, ids, number * settings.horizon)
        weights = torch.tensor(slots.weights, device=world.device)
        with session.precision.forward():
            return self._play(state, sample_ids, self._running[ids], weights)

    def _played(self, state: State, sample_ids: Tensor, running: Tensor, weights: Tensor) -> Rollout:
        actor, environment, settings = self.actor, self._environment, self._settings
        assert environment is not None
        trajectory = act(actor, environment, state, draw_noise(settings, environment, sample_ids), step=self._step)
        return evaluate_trajectory(actor, environment, trajectory, running=running, weights=weights, settings=settings)
