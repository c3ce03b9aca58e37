"""DPO: right answers are preferred to wrong ones, relative to a frozen reference."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.evaluation import over_ranks
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.workload import LossOutput, MicroBatch, Session
from torchyard_trainers.lm.data.batches import documents, encode
from torchyard_trainers.lm.methods.losses import PreferenceLoss, preference_loss
from torchyard_trainers.lm.scoring import Reference, Score, in_parts, scored, scorer
from torchyard_trainers.lm.settings import Settings
from torchyard_trainers.lm.tasks import rows_of


class Pairs(Protocol):
    """Pairs of answers by id.

    Attributes:
        held_out_count: pairs of the evaluation set.
    """

    held_out_count: int

    def pairs(self, ids: Sequence[int] | Tensor, *, held_out: bool = False) -> dict[str, Tensor]:
        """Return `tokens` and `labels` of right answers, then of wrong ones, [2n, T], and their `sizes` [2n]."""


class Preferences:
    """The steps of DPO; a sample is a pair of answers."""

    def __init__(self, settings: Settings, pairs: Pairs, reference: Reference) -> None:
        """Take the parts that all methods share."""
        self._settings, self._made, self._reference = settings, pairs, reference
        # Ids of this rank's pairs in order [n], and their log-probabilities under the reference [n, 2].
        self._known: tuple[Tensor, Tensor] | None = None
        # Log-probabilities of held-out pairs under the reference, by their positions.
        self._of_held_out: dict[tuple[int, ...], Tensor] = {}

    def prepare(self, session: Session, ids: Sequence[int], step: int) -> None:
        """Compute the reference's log-probabilities of this rank's pairs of a step. Collective at the first one.

        Args:
            session: the model in training, in `eval` mode.
            ids: of the samples of the step, those of all ranks.
            step: counted from the first of this method.
        """
        if not step:
            self._reference.renew()
            self._of_held_out.clear()
        world = session.world
        (slots,) = split(len(ids), world.size, world.rank)
        score = self._reference.scorer(session)
        own = sorted(ids[position] for position in slots.positions)  # equally many on every rank
        tokens, labels, _ = self._pairs(own, session)
        sums = _sums(in_parts(score, tokens, labels, session.micro_batch).log_probability)
        self._known = torch.tensor(own, device=world.device), sums

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        """Return the loss of pairs."""
        tokens, labels, sizes = self._pairs(batch.ids, session, read=batch.data)
        found = session.parallel.forward(tokens, labels, scores=True)
        now = _sums(scored(found, labels).log_probability)
        assert self._known is not None, "prepare ran before"
        ids, of_ids = self._known
        known = of_ids[torch.searchsorted(ids, batch.ids).clamp(max=len(ids) - 1)]
        result = self._compared(now, known, labels)
        statistics = {
            "rewardMargin": result.margin.dot(batch.weights),
            "rewardAccuracy": result.accuracy.dot(batch.weights),
            "chosenLogProbability": now[:, 0].detach().dot(batch.weights),
            "tokens": sizes.float().view(2, -1).sum(0).dot(batch.weights),
        }
        return LossOutput(result.loss.dot(batch.weights), statistics)

    def evaluate(self, session: Session) -> dict[str, float]:
        """Return what the model makes of held-out pairs. Collective.

        `preferenceAccuracy` is how often the right answer is more probable. Once there is a reference,
        `evalRewardAccuracy` is how often its log-probability has grown by more than that of the wrong one, and
        `evalRewardMargin` by how much, times `beta`: what the loss of a pair is made of.
        """
        score: Score = scorer(session)
        reference = self._reference.scorer(session) if self._reference.is_known(session.world) else None

        def judged(positions: list[int]) -> Tensor:
            tokens, labels, _ = self._pairs(positions, session, held_out=True)
            now, key = _sums(score(tokens, labels).log_probability), tuple(positions)
            right = (now[:, 0] > now[:, 1]).double()
            if reference is None:
                return right[:, None]
            if key not in self._of_held_out:
                self._of_held_out[key] = _sums(reference(tokens, labels).log_probability)
            result = self._compared(now, self._of_held_out[key], labels)
            return torch.stack([right, result.accuracy.double(), result.margin.double()], 1)

        found = over_ranks(session, judged, self._made.held_out_count, at_once=self._settings.eval_batch).mean(0)
        names = ("preferenceAccuracy", "evalRewardAccuracy", "evalRewardMargin")
        return dict(zip(names, found.tolist(), strict=False))

    def _compared(self, now: Tensor, known: Tensor, labels: Tensor) -> PreferenceLoss:
        """Return the loss of pairs from log-probabilities [n, 2] of the model in training and of the reference."""
        lengths = _sums((labels != IGNORE).float())
        return preference_loss(
            now[:, 0],
            now[:, 1],
            known[:, 0],
            known[:, 1],
            beta=self._settings.beta,
            lengths=(lengths[:, 0], lengths[:, 1]) if self._settings.length_normalized else None,
        )

    def _pairs(
        self, ids: Sequence[int] | Tensor, session: Session, *, read: Any = None, held_out: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens and labels of right answers, then of wrong ones, [2n, T], and the tokens of each [2n].

        Args:
            ids: of the pairs.
            session: the model in training.
            read: what was read for them ahead of time.
            held_out: of the evaluation set.
        """
        with session.data_wait:
            made = read if read is not None else self._made.pairs(ids, held_out=held_out)
        tokens, labels, sizes = (made[name].to(session.world.device) for name in ("tokens", "labels", "sizes"))
        return tokens, labels, sizes


class TaskPairs:
    """Right and wrong answers of a procedural task."""

    def __init__(self, settings: Settings, tokenizer: Any) -> None:
        """Take the tokenizer of the model."""
        self._settings, self._tokenizer = settings, tokenizer
        self.held_out_count = settings.eval_samples

    def pairs(self, ids: Sequence[int] | Tensor, *, held_out: bool = False) -> dict[str, Tensor]:
        """See `Pairs`."""
        settings, tokenizer = self._settings, self._tokenizer
        rows = rows_of(
            settings.task, settings.seed, ids, length=settings.length, symbols=settings.symbols, held_out=held_out
        )
        prompts = encode(tokenizer, [row.prompt for row in rows])
        answers = encode(tokenizer, [row.answer for row in rows] + [row.wrong for row in rows])
        completions = [[*answer, tokenizer.eos_token_id] for answer in answers]
        made = documents(prompts * 2, completions, pad=tokenizer.pad_token_id)
        sizes = torch.tensor([len(a) + len(b) for a, b in zip(prompts * 2, completions, strict=True)])
        return {"tokens": made.tokens, "labels": made.labels, "sizes": sizes}


def _sums(values: Tensor) -> Tensor:
    """Sum over the tokens of documents, the right ones and then the wrong ones: [2n, T] -> [n, 2]."""
    return values.sum(1).view(2, -1).T
