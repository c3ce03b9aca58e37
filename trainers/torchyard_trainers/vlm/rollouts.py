"""Rollouts of the policy in training, made before the optimizer steps that use them.

Checkpoints are saved between rollouts only, so that the state of the environments is all that a resumed run needs.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from torchyard_trainers.core.batching import Slots, split
from torchyard_trainers.core.graphs import Graphed
from torchyard_trainers.core.parallel import SHARDED
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key, uniform
from torchyard_trainers.core.workload import Session
from torchyard_trainers.rl.clipped import likelihood_of
from torchyard_trainers.rl.environment import State
from torchyard_trainers.rl.ppo import Minibatch
from torchyard_trainers.rl.rollout import (
    FACTS,
    draw_noise,
    gather_rows,
    judge,
    order_of,
    rows_of,
    sample_ids_of,
)
from torchyard_trainers.vlm.environments import Instructed
from torchyard_trainers.vlm.models import Answer
from torchyard_trainers.vlm.params import Settings


class Played(NamedTuple):
    """T steps of the n environments of this rank."""

    number: int
    state: State  # before each step, [T, n, ...]: images are drawn again from it
    features: Tensor | None  # [T, n, ...], what a frozen vision tower made of the images
    action: Tensor  # [T, n, 1] int64
    log_probability: Tensor  # [T, n, 1] under the policy that acted
    reward: Tensor  # [T, n, 1]
    terminated: Tensor
    truncated: Tensor
    advantage: Tensor  # [T, n, 1], normalised over the rollouts of all ranks
    target: Tensor  # [T, n, 1] for the value
    facts: Tensor  # [FACTS] float64, over all ranks
    following: State  # after the last step, [n, ...]
    running: Tensor  # [n, 1] return so far of unfinished episodes


class Player:
    """The environments of a run, and the rollout that is learned from."""

    def __init__(self, settings: Settings, environment: Instructed) -> None:
        """Reset every environment."""
        self._settings, self.environment = settings, environment
        keys = sample_keys(stream_key(settings.seed, "start"), torch.arange(settings.environments))
        self._state: State = environment.reset(uniform(split_keys(keys, environment.draws)))
        self._running = torch.zeros(settings.environments, 1)
        self._graphed: Graphed[[Tensor], Answer] | None = None
        self._played: Played | None = None

    def state(self) -> dict[str, Any]:
        """Return the state from which the next rollout starts; a restore fills it in place."""
        return {"environments": self._state, "running": self._running}

    def prepare(self, session: Session, number: int) -> None:
        """Play rollout `number` with the weights of now, of a model in `eval` mode. Collective."""
        self._played = None  # never two at once
        self._played = self._play(session, number)

    def finish(self, session: Session) -> dict[str, float]:
        """Go on to where the rollout ended; return its facts over all ranks. Collective."""
        played, count = self._played, self._settings.environments
        assert played is not None
        facts = dict(zip(FACTS, played.facts.tolist(), strict=True))
        self._state = {name: gather_rows(each, session.world, count) for name, each in played.following.items()}
        self._running = gather_rows(played.running, session.world, count)
        self._played = None
        return facts

    def minibatch(self, session: Session, environments: Tensor, index: int) -> tuple[dict[str, Any], Minibatch]:
        """Return what the policy reads, and the samples, of optimizer step `index` of the rollout.

        Args:
            session: of the run.
            environments: [m], of this rank.
            index: of the step, from 0 on.
        """
        settings, played = self._settings, self._played
        assert played is not None
        epoch, part = divmod(index, settings.minibatches)
        length = settings.horizon // settings.minibatches
        rows = rows_of(session.world, environments)
        order = order_of(settings, session.world, played.number * settings.epochs + epoch)
        times, rows = order[rows, part * length :][:, :length], rows[:, None]
        samples = (
            each[times, rows] for each in (played.action, played.log_probability, played.advantage, played.target)
        )
        return self._input(played.state, played.features, times, rows), Minibatch(None, *samples)

    def _input(self, state: State, features: Tensor | None, times: Tensor, rows: Tensor) -> dict[str, Any]:
        """Return the arguments of the policy for times and rows [m, t]: of m * t images."""
        if features is not None:
            return {"images": None, "features": features[times, rows].flatten(0, 1)}
        return {"images": self._images({name: each[times, rows].flatten(0, 1) for name, each in state.items()})}

    def _images(self, state: State) -> Tensor:
        size = self._settings.image_size
        return self.environment.observe(state).reshape(-1, 3, size, size)

    @torch.no_grad()
    def _play(self, session: Session, number: int) -> Played:
        settings, world, environment = self._settings, session.world, self.environment
        (slots,) = split(settings.environments, world.size, world.rank)
        ids = torch.tensor(slots.positions, device=world.device)
        state = {name: each.to(world.device)[ids] for name, each in self._state.items()}
        noise = draw_noise(settings, environment, sample_ids_of(settings, ids, number * settings.horizon))
        states, answers, actions, outcomes, finals = [], [], [], [], []
        keeps = session.parallel.module.sees_alike
        fake = isinstance(ids, FakeTensor)  # a forecast of memory: every step takes what the first one takes
        for numbers, gumbels in zip(noise.uniform, noise.actions, strict=True):
            again = answers[0] if fake and answers else None
            answer = self._ask(session, self._images(state)) if again is None else Answer(*map(torch.clone, again))
            action = (answer.logits + gumbels[:, 0]).argmax(-1, keepdim=True)
            outcome = environment.step(state, action, numbers)
            finals.append(outcome.final)
            answers.append(answer if keeps else answer._replace(features=answer.features[:0]))
            states.append(state)
            actions.append(action)
            outcomes.append(outcome._replace(state={}, final=None))
            state = outcome.state
            session.reporter.goes_on()
        last = self._ask(session, self._images(state)).value
        cut = self._final_values(session, torch.stack([each.truncated for each in outcomes]), finals)
        logits, value, features = (torch.stack(each) for each in zip(*answers, strict=True))
        action = torch.stack(actions)
        played = Played(
            number,
            {name: torch.stack([each[name] for each in states]) for name in state},
            features if keeps else None,
            action,
            likelihood_of(F.log_softmax(logits, -1)[:, :, None], action),
            *(torch.stack([each[place] for each in outcomes]) for place in (1, 2, 3)),
            *(torch.empty(0),) * 3,
            state,
            self._running.to(world.device)[ids],
        )
        if session.precision.name != "fp32":
            played, value = self._asked_again(session, played, value)
        value = value[..., None]
        following = torch.cat([value[1:], last[None, :, None]])
        following = torch.where(played.truncated, cut, following)
        weights = torch.tensor(slots.weights, device=world.device)
        found = judge(played, value, following, running=played.running, weights=weights, settings=settings)
        facts, count = world.total(found.facts.clone()), settings.environments * settings.horizon
        mean = facts[2] / count
        deviation = (facts[3] / count - mean.square()).clamp(min=0).sqrt()
        advantage = ((found.advantage - mean) / (deviation + 1e-8)).to(value.dtype)
        return played._replace(advantage=advantage, target=found.target, facts=facts, running=found.running)

    def _ask(self, session: Session, images: Tensor, *, steady: bool = True) -> Answer:
        """Return the answers to images [n, 3, S, S], `rolloutBatch` at once; `steady`: n is the same every time."""
        parts = images.split(self._settings.rollout_batch or len(images))
        answer = self._answer if steady else _answer
        with session.precision.forward():
            found = [answer(session, part) for part in parts]
        return found[0] if len(found) == 1 else Answer(*map(torch.cat, zip(*found, strict=True)))

    def _answer(self, session: Session, images: Tensor) -> Answer:
        """Return the answers to images, with `parallelism.compile` by a CUDA graph."""
        if not self._settings.compile or session.parallel.strategy in SHARDED:  # which have parameters in a pass only
            return _answer(session, images)
        if self._graphed is None:
            policy = session.parallel.module  # whose tower, if it is that of the library, reads sizes from the device
            self._graphed = Graphed(policy, wanted=policy.tower.batched)
        return Answer(*map(torch.clone, self._graphed(images)))  # the next pass writes to the same memory

    def _final_values(self, session: Session, truncated: Tensor, finals: Sequence[State | None]) -> Tensor:
        """Return the values of the states in which episodes were cut off, [T, n, 1]; other entries are 0.

        The host has to know how many there are. It asks once, after the rollout: a step waits for no answer.

        Args:
            session: of the run.
            truncated: [T, n, 1] bool.
            finals: of each step, the states that its environments ended in.
        """
        values = torch.zeros(truncated.shape, device=truncated.device)
        known = [each for each in finals if each is not None]
        if len(known) < len(finals):  # no episode is ever cut off
            return values
        count = truncated.shape[1]
        if isinstance(truncated, FakeTensor):
            return values + self._ask(session, self._images(known[0])).value[:, None]
        places = truncated[..., 0].nonzero()
        passes = -(-len(places) // count)
        if session.parallel.strategy in SHARDED:  # all ranks gather parameters, or none
            passes = int(max(session.world.gather(passes)))
        ended = {name: torch.stack([each[name] for each in known]) for name in known[0]}
        for number in range(passes):
            part = places[number * count :][:count]
            times, rows = (part if len(part) else places.new_zeros(1, 2)).unbind(1)
            images = self._images({name: each[times, rows] for name, each in ended.items()})
            value = self._ask(session, images, steady=False).value
            if len(part):
                values[times, rows, 0] = value
        return values

    def _asked_again(self, session: Session, played: Played, value: Tensor) -> tuple[Played, Tensor]:
        """Return log-probabilities and values by the very passes of the first epoch.

        In half precision, a batch of another size may round differently, and ratios would not be 1 at first.
        """
        settings, world = self._settings, session.world
        again, value = torch.zeros_like(played.log_probability), value.clone()
        order = order_of(settings, world, played.number * settings.epochs)
        length = settings.horizon // settings.minibatches
        fake = isinstance(again, FakeTensor)  # a forecast of memory: all passes take as much
        for part in range(1 if fake else settings.minibatches):
            for slots in self._slots(session)[: 1 if fake else None]:
                rows = rows_of(world, torch.tensor(slots.positions, device=world.device))
                times, rows = order[rows, part * length :][:, :length], rows[:, None]
                with session.precision.forward():
                    shares = session.parallel.strategy not in SHARDED
                    inputs = self._input(played.state, played.features, times, rows)
                    answer = session.parallel.module(**inputs, shares=shares)
                found = F.log_softmax(answer.logits, -1).unflatten(0, times.shape)[:, :, None]
                again[times, rows] = likelihood_of(found, played.action[times, rows])
                value[times, rows] = answer.value.unflatten(0, times.shape)
        return played._replace(log_probability=again), value

    def _slots(self, session: Session) -> list[Slots]:
        return split(self._settings.environments, session.world.size, session.world.rank, session.micro_batch)


def _answer(session: Session, images: Tensor) -> Answer:
    found: Answer = session.parallel.module(images)
    return found
