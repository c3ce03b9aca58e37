"""Preference learning: the log-probabilities of answers that are known to be right or wrong, and a loss of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.device import only_shapes
from torchyard_trainers.core.evaluation import over_ranks
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.workload import LossOutput, Mean, MicroBatch, Session
from torchyard_trainers.lm.data.batches import documents, encode
from torchyard_trainers.lm.methods.objectives.dpo import Dpo
from torchyard_trainers.lm.methods.objectives.kto import Kto
from torchyard_trainers.lm.methods.objectives.objective import Answers, Objective
from torchyard_trainers.lm.methods.objectives.orpo import Orpo
from torchyard_trainers.lm.methods.objectives.own import Own
from torchyard_trainers.lm.methods.objectives.simpo import Simpo
from torchyard_trainers.lm.scoring import Reference, Score, in_parts, scored, scorer
from torchyard_trainers.lm.settings import Settings
from torchyard_trainers.lm.tasks import rows_of


def objective_of(settings: Settings) -> Objective:
    """Return the objective that the parameters name.

    Raises:
        ConfigError: it is a function that does not exist.
    """
    if settings.objective is not None:
        return Own(settings.objective, settings.beta)
    if settings.method == "kto":
        return Kto(settings.beta, settings.desirable_weight, settings.undesirable_weight)
    if settings.method == "orpo":
        return Orpo(settings.beta)
    if settings.method == "simpo":
        return Simpo(settings.beta, settings.target_margin)
    return Dpo(settings.beta, settings.length_normalized)


class RatedAnswers(Protocol):
    """Answers by the ids of their samples.

    Attributes:
        held_out_count: samples of the evaluation set.
    """

    held_out_count: int

    def rated(self, ids: Sequence[int] | Tensor, *, held_out: bool = False) -> dict[str, Tensor]:
        """Return `tokens` and `labels` of answers, [m, T], and their `sizes` [m].

        Of n pairs, the chosen answers and then the rejected ones; else one answer of each, with `right` [m].
        """

    def exchanged(self, ids: Sequence[int], others: Sequence[int], *, held_out: bool = False) -> dict[str, Tensor]:
        """Return `tokens` and `labels` of the prompts of samples, each with the answer of another sample."""


class _Prepared(NamedTuple):
    """What is known of this rank's samples before a step."""

    ids: Tensor  # [n], in order
    reference: Tensor  # log-probabilities of their answers, [n, k]
    divergence: Tensor | None


class Preferences:
    """The steps of preference learning; a sample is a pair of answers, or an answer with a label."""

    def __init__(
        self, settings: Settings, answers: RatedAnswers, objective: Objective, reference: Reference | None
    ) -> None:
        """Take the parts that all methods share; the reference is needed if the objective uses it."""
        self._settings, self._data, self._objective, self._reference = settings, answers, objective, reference
        self._prepared: _Prepared | None = None
        # Log-probabilities of held-out answers under the reference, by their positions.
        self._of_held_out: dict[tuple[int, ...], list[Tensor]] = {}

    def prepare(self, session: Session, ids: Sequence[int], step: int) -> dict[str, float]:
        """Score this rank's samples of a step with the reference; return metrics. Collective.

        Args:
            session: the model in training, in `eval` mode.
            ids: of the samples of the step, those of all ranks.
            step: counted from the first of this method.
        """
        if self._reference is None:
            return {}
        if not step:
            self._reference.renew()
            self._of_held_out.clear()
        world = session.world
        (slots,) = split(len(ids), world.size, world.rank)
        score = self._reference.scorer(session)
        own = sorted(ids[position] for position in slots.positions)  # equally many on every rank
        made = self._read(own, session)
        sums = self._columns(in_parts(score, made["tokens"], made["labels"], session.micro_batch).log_probability)
        divergence, metrics = None, {}
        if self._objective.uses_divergence:
            gaps = self._gaps(session, score, [(ids[each], ids[each - 1]) for each in slots.positions])
            divergence = torch.zeros((), device=world.device)
            if not only_shapes():
                total = world.total(gaps.double().dot(torch.tensor(slots.weights, device=world.device).double())[None])
                divergence = (total[0] / len(ids)).clamp(min=0).float()
                metrics = {"kl": float(divergence)}
        self._prepared = _Prepared(torch.tensor(own, device=world.device), sums, divergence)
        return metrics

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        """Return the loss of samples."""
        made = self._read(batch.ids, session, read=batch.data)
        labels, weights = made["labels"], batch.weights
        found = session.parallel.forward(made["tokens"], labels, scores=True)
        reference = divergence = None
        if self._reference is not None:
            assert self._prepared is not None, "prepare ran before"
            ids, of_ids, divergence = self._prepared
            reference = of_ids[torch.searchsorted(ids, batch.ids).clamp(max=len(ids) - 1)].T.flatten()
        answers = Answers(
            scored(found, labels).log_probability.sum(1),
            (labels != IGNORE).sum(1),
            reference,
            self._right(made, len(weights)),
            divergence,
        )
        outcome = self._objective(answers)
        counts = weights.repeat(len(labels) // len(weights))
        statistics: dict[str, Tensor | Mean] = {
            "rewardAccuracy": outcome.accuracy.dot(weights),
            "tokens": made["sizes"].float().dot(counts),
        }
        right, wrong = answers.right * counts, ~answers.right * counts
        now = answers.log_probability.detach()
        statistics["chosenLogProbability"] = Mean(now.dot(right), right.sum())
        if self._objective.paired:
            statistics["rewardMargin"] = outcome.reward.dot(right - wrong)
        else:
            statistics["chosenReward"] = Mean(outcome.reward.dot(right), right.sum())
            statistics["rejectedReward"] = Mean(outcome.reward.dot(wrong), wrong.sum())
        return LossOutput(outcome.loss.dot(weights), statistics)

    def evaluate(self, session: Session) -> dict[str, float]:
        """Return what the model makes of held-out answers. Collective.

        `preferenceAccuracy` is how often the right answer of a pair is more probable. `evalRewardAccuracy` is how often
        the rewards that the objective implies are right, and `evalRewardMargin` how much higher those of right answers
        are than those of wrong ones; both need the reference, if the objective uses one.
        """
        objective, count = self._objective, self._data.held_out_count
        score: Score = scorer(session)
        reference = None
        if self._reference is not None and self._reference.is_known(session.world):
            reference = self._reference.scorer(session)

        def measured(positions: list[int]) -> Tensor:
            made = self._read(positions, session, held_out=True)
            tokens, labels = made["tokens"], made["labels"]
            parts = [
                self._columns(score(tokens, labels).log_probability),
                self._columns((labels != IGNORE).float()),
                self._columns(self._right(made, len(positions))[:, None].float()),
            ]
            if reference is not None:
                if (key := tuple(positions)) not in self._of_held_out:
                    self._of_held_out[key] = [self._columns(reference(tokens, labels).log_probability)]
                parts += self._of_held_out[key]
            if reference is not None and objective.uses_divergence:
                others = [(each, (each - 1) % count) for each in positions]
                parts.append(self._gaps(session, reference, others, held_out=True)[:, None])
            return torch.cat(parts, 1).double()

        found = over_ranks(session, measured, count, at_once=self._settings.eval_batch)
        width = 2 if objective.paired else 1
        now, tokens, right, *known = (each.T.flatten() for each in found.split(width, 1))
        metrics = {}
        if objective.paired:
            metrics["preferenceAccuracy"] = float((now[:count] > now[count:]).double().mean())
        if objective.uses_reference and not known:
            return metrics
        answers = Answers(
            now,
            tokens,
            known[0] if known else None,
            right > 0,
            known[1].mean().clamp(min=0) if objective.uses_divergence else None,
        )
        outcome = objective(answers)
        metrics["evalRewardAccuracy"] = float(outcome.accuracy.double().mean())
        if answers.right.any() and not answers.right.all():
            means = [outcome.reward[each].mean() for each in (answers.right, ~answers.right)]
            metrics["evalRewardMargin"] = float(means[0] - means[1])
        return metrics

    def _gaps(
        self, session: Session, reference: Score, samples: Sequence[tuple[int, int]], *, held_out: bool = False
    ) -> Tensor:
        """Return how much more probable than under the reference the answers of other samples are, [n].

        Args:
            session: the model in training.
            reference: scores the reference.
            samples: ids of prompts, each with that of its answer.
            held_out: of the evaluation set.
        """
        with session.data_wait:
            made = self._data.exchanged(*zip(*samples, strict=True), held_out=held_out)
        tokens, labels = (made[name].to(session.world.device) for name in ("tokens", "labels"))
        now, known = (
            in_parts(each, tokens, labels, session.micro_batch).log_probability.sum(1)
            for each in (scorer(session), reference)
        )
        return now - known

    def _columns(self, values: Tensor) -> Tensor:
        """Sum over the tokens of answers: [m, T] -> [n, 2] of pairs, the right ones first; else [n, 1]."""
        return values.sum(1).view(2 if self._objective.paired else 1, -1).T

    def _right(self, made: dict[str, Tensor], count: int) -> Tensor:
        if "right" in made:
            return made["right"]
        return torch.arange(2 * count, device=made["labels"].device) < count

    def _read(
        self, ids: Sequence[int] | Tensor, session: Session, *, read: Any = None, held_out: bool = False
    ) -> dict[str, Tensor]:
        """Return the answers of samples, as `RatedAnswers.rated` does.

        Args:
            ids: of the samples.
            session: the model in training.
            read: what was read for them ahead of time.
            held_out: of the evaluation set.
        """
        with session.data_wait:
            made = read if read is not None else self._data.rated(ids, held_out=held_out)
        names = ("tokens", "labels", "sizes", "right")
        return {name: made[name].to(session.world.device) for name in names if name in made}


class TaskAnswers:
    """Right and wrong answers of a procedural task; of samples with one answer, every second one is wrong."""

    def __init__(self, settings: Settings, tokenizer: Any) -> None:
        """Take the tokenizer of the model."""
        self._settings, self._tokenizer = settings, tokenizer
        self.held_out_count = settings.eval_samples

    def rated(self, ids: Sequence[int] | Tensor, *, held_out: bool = False) -> dict[str, Tensor]:
        """See `RatedAnswers`."""
        made = self._made(ids, held_out=held_out)
        if self._settings.method == "kto":
            prompts, answers = [each.prompt for each in made], [each.said for each in made]
        else:
            prompts = [each.prompt for each in made] * 2
            answers = [each.answer for each in made] + [each.wrong for each in made]
        found = self._documents(prompts, answers)
        return found | (
            {"right": torch.tensor([each.right for each in made])} if self._settings.method == "kto" else {}
        )

    def exchanged(self, ids: Sequence[int], others: Sequence[int], *, held_out: bool = False) -> dict[str, Tensor]:
        """See `RatedAnswers`."""
        asked, said = (self._made(each, held_out=held_out) for each in (ids, others))
        return self._documents([each.prompt for each in asked], [each.said for each in said])

    def _made(self, ids: Sequence[int] | Tensor, *, held_out: bool) -> "list[_Sample]":
        settings = self._settings
        rows = rows_of(
            settings.task, settings.seed, ids, length=settings.length, symbols=settings.symbols, held_out=held_out
        )
        known = range(len(rows)) if only_shapes() else torch.as_tensor(ids).tolist()
        return [_Sample(*row, right=each % 2 == 0) for row, each in zip(rows, known, strict=True)]

    def _documents(self, prompts: list[str], answers: list[str]) -> dict[str, Tensor]:
        tokenizer = self._tokenizer
        asked = encode(tokenizer, prompts)
        completions = [[*answer, tokenizer.eos_token_id] for answer in encode(tokenizer, answers)]
        made = documents(asked, completions, pad=tokenizer.pad_token_id)
        sizes = torch.tensor([len(a) + len(b) for a, b in zip(asked, completions, strict=True)])
        return {"tokens": made.tokens, "labels": made.labels, "sizes": sizes}


class _Sample(NamedTuple):
    prompt: str
    answer: str
    wrong: str
    right: bool

    @property
    def said(self) -> str:
        return self.answer if self.right else self.wrong
