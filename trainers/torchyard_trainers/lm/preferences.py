"""DPO: right answers are preferred to wrong ones, relative to a frozen reference."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.evaluation import over_ranks
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.workload import LossOutput, MicroBatch, Session
from torchyard_trainers.lm.batches import Batch, documents, encode
from torchyard_trainers.lm.losses import preference_loss
from torchyard_trainers.lm.params import Settings
from torchyard_trainers.lm.scoring import Reference, Score, in_parts, scored, scorer
from torchyard_trainers.lm.tasks import rows_of


class Preferences:
    """The steps of DPO; a sample is a pair of answers."""

    def __init__(self, settings: Settings, tokenizer: Any, reference: Reference) -> None:
        """Take the parts that all methods share."""
        self._settings, self._tokenizer, self._reference = settings, tokenizer, reference
        self._known: tuple[int, Tensor] | None = None  # step; log-probabilities under the reference: [n, 2]

    def prepare(self, session: Session, ids: Sequence[int], step: int) -> None:
        """Compute the reference's log-probabilities of this rank's pairs of a step. Collective at the first one.

        Args:
            session: the model in training.
            ids: of the samples of the step, those of all ranks.
            step: counted from the first of this method.
        """
        if not step:
            self._reference.renew()
        world = session.world
        (slots,) = split(len(ids), world.size, world.rank)
        score = self._reference.scorer(session)
        pairs = self._pairs([ids[position] for position in slots.positions], session)
        self._known = step, _sums(in_parts(score, *pairs, session.micro_batch).log_probability)

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        """Return the loss of pairs."""
        settings, world = self._settings, session.world
        tokens, labels = self._pairs(batch.ids.tolist(), session)
        found = session.parallel.forward(tokens, labels, scores=True)
        now = _sums(scored(found, labels).log_probability)
        assert self._known is not None, "prepare ran before"
        rows = ((batch.ids % settings.batch) - world.rank).clamp(min=0) // world.size
        known = self._known[1][rows]
        lengths = _sums((labels != IGNORE).float())
        result = preference_loss(
            now[:, 0],
            now[:, 1],
            known[:, 0],
            known[:, 1],
            beta=settings.beta,
            lengths=(lengths[:, 0], lengths[:, 1]) if settings.length_normalized else None,
        )
        statistics = {
            "rewardMargin": result.margin.dot(batch.weights),
            "rewardAccuracy": result.accuracy.dot(batch.weights),
            "chosenLogProbability": now[:, 0].detach().dot(batch.weights),
            "tokens": ((tokens != self._tokenizer.pad_token_id).sum(1) + 1.0).view(2, -1).sum(0).dot(batch.weights),
        }
        return LossOutput(result.loss.dot(batch.weights), statistics)

    def evaluate(self, session: Session) -> dict[str, float]:
        """Return how often the model finds the right answer of a held-out pair more probable. Collective."""
        score: Score = scorer(session)

        def right(positions: list[int]) -> Tensor:
            tokens, labels = self._pairs(positions, session, held_out=True)
            sums = _sums(score(tokens, labels).log_probability)
            return sums[:, 0] > sums[:, 1]

        found = over_ranks(session, right, self._settings.eval_samples, at_once=self._settings.eval_batch)
        return {"preferenceAccuracy": float(found.mean())}

    def _pairs(self, ids: Sequence[int], session: Session, *, held_out: bool = False) -> tuple[Tensor, Tensor]:
        """Return tokens and labels of right answers, then of wrong ones: [2n, T]."""
        settings, device = self._settings, session.world.device
        with session.data_wait:
            rows = rows_of(
                settings.task, settings.seed, ids, length=settings.length, symbols=settings.symbols, held_out=held_out
            )
            prompts = encode(self._tokenizer, [row.prompt for row in rows])
            end = self._tokenizer.eos_token_id
            answers = encode(self._tokenizer, [row.answer for row in rows] + [row.wrong for row in rows])
            made: Batch = documents(
                prompts * 2, [[*answer, end] for answer in answers], pad=self._tokenizer.pad_token_id
            )
        return made.tokens.to(device), made.labels.to(device)


def _sums(values: Tensor) -> Tensor:
    """Sum over the tokens of documents, the right ones and then the wrong ones: [2n, T] -> [n, 2]."""
    return values.sum(1).view(2, -1).T
