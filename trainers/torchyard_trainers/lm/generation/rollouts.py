"""Rollouts of GRPO and PPO: completions of prompts, their rewards, and what each of their tokens is worth.

A rollout serves the optimizer steps of all its minibatches. Each rank generates the completions that are its samples in
these steps, so no completion moves between ranks; only rewards do, since a group is spread over ranks.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.device import only_shapes
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.workload import Session
from torchyard_trainers.lm.data.batches import documents
from torchyard_trainers.lm.data.records import Prompt
from torchyard_trainers.lm.generation.engine import Completions, Engine, Sampling
from torchyard_trainers.lm.methods.losses import token_rewards
from torchyard_trainers.lm.scoring import Score, Scored, in_parts
from torchyard_trainers.lm.settings import Settings
from torchyard_trainers.rl.advantages import group_advantages, token_advantages


class Rollout(NamedTuple):
    """Completions of this rank, with their prompts: [n, T], padded on the right; a row for each of its samples."""

    tokens: Tensor
    labels: Tensor  # the tokens of the completion, `IGNORE` elsewhere
    advantage: Tensor
    acted: Tensor | None  # log-probabilities when the rollout was made; None: those of the only step that uses it
    reference: Tensor | None  # log-probabilities under the reference
    target: Tensor | None  # expected return, for the value head of PPO
    sampled: Tensor | None = None  # log-probabilities that tokens were sampled with; None: those of this model

    def take(self, rows: Tensor) -> "Rollout":
        """Return some of the completions."""
        return Rollout(*(None if each is None else each[rows] for each in self))

    def first(self, count: int) -> "Rollout":
        """Return the first completions: in a forecast all are alike, and their labels keep their values."""
        with unset_fake_temporarily():
            return Rollout(*(None if each is None else each[:count] for each in self))


class Judge(Protocol):
    """Judges completions."""

    def __call__(self, prompts: Sequence[Prompt], completions: Completions) -> Sequence[Sequence[float]]:
        """Return the rewards of each completion: a list for each reward function."""


class Collector:
    """Makes the rollouts of one rank.

    Attributes:
        masked: the minibatches of the newest rollout without a token that counts, on any rank.
    """

    def __init__(
        self,
        settings: Settings,
        prompts: Callable[[Sequence[int]], list[Prompt]],
        engine: Engine,
        sampling: Sampling,
        judge: Judge,
        *,
        pad: int,
    ) -> None:
        """Create a collector.

        Args:
            settings: of the run.
            prompts: returns the prompts of ids.
            engine: generates the completions.
            sampling: how it does.
            judge: returns the rewards of completions.
            pad: the token that fills rows.
        """
        self._settings, self._prompts, self._engine = settings, prompts, engine
        self._sampling, self._judge, self._pad = sampling, judge, pad
        self.masked: frozenset[int] = frozenset()

    def collect(
        self, session: Session, number: int, *, score: Score | None, reference: Score | None
    ) -> tuple[Rollout, dict[str, float]]:
        """Make rollout `number`; return it with metrics that are equal on every rank. Collective.

        Args:
            session: the model in training.
            number: of the rollout; 0 is the first.
            score: scores the model in training, where the steps of the rollout or the value head need it.
            reference: scores the reference.
        """
        settings, world = self._settings, session.world
        total = settings.batch * settings.minibatches
        positions, real = samples_of_rank(settings, world.size, world.rank)
        completion_ids = [number * total + position for position in positions]
        with session.data_wait:
            prompts = self._prompts([each // settings.group for each in completion_ids])
        found = self._generate(session, prompts, torch.tensor(completion_ids))
        if only_shapes():  # values are needed for what follows, but little memory
            return self._of_shapes(session, self._documents(prompts, found, world.device), score, reference), {}
        parts = torch.tensor(self._judge(prompts, found), dtype=torch.float64)  # [rewards, n]
        rewards = torch.tensor([each.weight for each in settings.rewards], dtype=torch.float64) @ parts
        own = [position for position, counts in zip(positions, real, strict=True) if counts]
        keep = torch.tensor(real)

        def of_all(values: Tensor) -> Tensor:
            return world.merge(total, own, values.cpu()[keep])

        reward, lengths, stopped = map(of_all, (rewards, found.lengths, found.stopped))
        rows = torch.tensor(positions)
        metrics = {
            "reward": float(reward.mean()),
            "rewardDeviation": float(reward.std(correction=0)),
            "completionTokens": float(lengths.mean()),
            "truncatedFraction": 1 - float(stopped.mean()),
        }
        if len(parts) > 1:
            metrics |= {f"reward{number}": float(of_all(each).mean()) for number, each in enumerate(parts, 1)}
        if found.calls is not None:
            calls, failed = (of_all(each) for each in found.calls.double().T)
            metrics["toolCalls"] = float(calls.mean())
            if calls.any():
                metrics["toolFailures"] = float(failed.sum() / calls.sum())
        made = self._documents(prompts, found, world.device)
        if settings.mask_truncated:
            cut = ~found.stopped.to(world.device)
            made = made._replace(labels=made.labels.masked_fill(cut[:, None], IGNORE))
            whole = stopped.view(settings.minibatches, -1).any(1).tolist()
            self.masked = frozenset(number for number, each in enumerate(whole) if not each)
        acted = self._scored(session, score, made)
        frozen = self._scored(session, reference, made)
        known = None if frozen is None else frozen.log_probability
        mask = made.labels != IGNORE
        if settings.method == "grpo":
            advantage, degenerate = group_advantages(reward, settings.group, normalize=settings.normalize_groups)
            metrics["degenerateGroups"] = float(degenerate.double().mean())
            of_token = advantage[rows].float().to(world.device)[:, None] * mask
            return made._replace(
                advantage=of_token, acted=acted.log_probability if acted is not None else None, reference=known
            ), metrics
        assert acted is not None, "PPO needs the values of the policy that acted"
        advantage, target = self._token_advantages(rewards.float().to(world.device), acted, known, mask)
        counted = mask * torch.tensor(real, device=world.device)[:, None]
        sums = torch.stack([counted.sum(), (advantage * counted).sum(), (advantage.square() * counted).sum()]).double()
        count, first, second = world.total(sums).tolist()
        mean = first / max(count, 1)
        deviation = max(second / max(count, 1) - mean**2, 0.0) ** 0.5
        # Normalised over the rollout, all ranks together.
        advantage = ((advantage - mean) / (deviation + 1e-8)).masked_fill(~mask, 0)
        return made._replace(advantage=advantage, acted=acted.log_probability, reference=known, target=target), metrics

    def _of_shapes(self, session: Session, made: Rollout, score: Score | None, reference: Score | None) -> Rollout:
        acted, frozen = (self._scored(session, each, made) for each in (score, reference))
        return made._replace(
            acted=None if acted is None else acted.log_probability,
            reference=None if frozen is None else frozen.log_probability,
            target=acted.value if acted is not None and self._settings.method == "ppo" else None,
        )

    def _generate(self, session: Session, prompts: Sequence[Prompt], ids: Tensor) -> Completions:
        size = self._settings.rollout_batch or len(prompts)
        parts = []
        starts = range(0, len(prompts), size)
        with self._engine.on_current_weights():
            for at in starts[:1] if only_shapes() else starts:
                tokens = [prompt.tokens for prompt in prompts[at : at + size]]
                parts.append(self._engine.generate(tokens, ids[at : at + size], self._sampling))
                session.reporter.goes_on()
        if only_shapes():
            return Completions(
                *(None if each is None else torch.cat([each] * len(starts))[: len(prompts)] for each in parts[0])
            )
        width = max(part.tokens.shape[1] for part in parts)

        def widened(tensor: Tensor) -> Tensor:
            return torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]))

        def joined(tensors: Sequence[Tensor | None]) -> Tensor | None:
            there = [widened(each) for each in tensors if each is not None]
            return torch.cat(there) if there else None

        return Completions(
            torch.cat([widened(part.tokens) for part in parts]),
            torch.cat([widened(part.mask) for part in parts]),
            torch.cat([part.stopped for part in parts]),
            joined([part.sampled for part in parts]),
            joined([part.generated for part in parts]),
            torch.cat([part.calls for part in parts if part.calls is not None]) if parts[0].calls is not None else None,
        )

    def _scored(self, session: Session, score: Score | None, made: Rollout) -> Scored | None:
        return None if score is None else in_parts(score, made.tokens, made.labels, session.micro_batch)

    def _documents(self, prompts: Sequence[Prompt], found: Completions, device: torch.device) -> Rollout:
        if only_shapes():
            completions = [[0] * found.tokens.shape[1]] * len(prompts)
        else:
            lengths = found.lengths.tolist()
            completions = [row[:length] for row, length in zip(found.tokens.tolist(), lengths, strict=True)]
        batch = documents([prompt.tokens for prompt in prompts], completions, pad=self._pad)
        tokens, labels = batch.tokens.to(device), batch.labels.to(device)
        nothing = torch.zeros(tokens.shape, device=device)
        sampled = None
        if found.sampled is not None and only_shapes():
            sampled = nothing
        elif found.sampled is not None:  # where the labels are, which are the tokens of the completion
            sampled = nothing.masked_scatter(labels != IGNORE, found.sampled[found.mask].to(device))
        if found.generated is not None and not only_shapes():  # what tools answered is not learned
            own = torch.zeros_like(labels, dtype=torch.bool)
            own = own.masked_scatter(labels != IGNORE, found.generated[found.mask].to(device))
            labels = labels.where(own, IGNORE)
        return Rollout(tokens, labels, nothing, None, None, None, sampled)

    def _token_advantages(
        self, rewards: Tensor, acted: Scored, known: Tensor | None, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the advantage of each token and the target of its value: [n, T]."""
        settings = self._settings
        # A completion starts at another column in each row; the estimate wants them at the first.
        start = mask.int().argmax(1, keepdim=True)
        columns = torch.arange(mask.shape[1], device=mask.device)
        order = (columns + start) % mask.shape[1]

        def first(tensor: Tensor) -> Tensor:
            return tensor.gather(1, order)

        ahead = first(mask)
        reward = token_rewards(
            rewards,
            first(acted.log_probability),
            None if known is None else first(known),
            ahead,
            kl_coefficient=settings.kl_coefficient,
        )
        value = first(acted.value)
        advantage = token_advantages(reward, value, ahead, gamma=settings.gamma, decay=settings.gae_lambda)
        target = (advantage + value).masked_fill(~ahead, 0)
        back = (columns - start) % mask.shape[1]
        return advantage.gather(1, back), target.gather(1, back)


def samples_of_rank(settings: Settings, world: int, rank: int) -> tuple[list[int], list[bool]]:
    """Return which completions of a rollout a rank generates, minibatch by minibatch, and which of them count."""
    (slots,) = split(settings.batch, world, rank)
    positions, real = [], []
    for minibatch in range(settings.minibatches):
        positions += [minibatch * settings.batch + position for position in slots.positions]
        real += [weight > 0 for weight in slots.weights]
    return positions, real


def rows_of_samples(settings: Settings, world: int, rank: int, minibatch: int, samples: Tensor) -> Tensor:
    """Return the rows of a rank's rollout that are the samples at these positions of a minibatch."""
    (slots,) = split(settings.batch, world, rank)
    return minibatch * len(slots.positions) + (samples - rank).clamp(min=0) // world
