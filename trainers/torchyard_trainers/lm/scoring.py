"""Scores of documents as [n, T], by the model in training and by a frozen reference."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.named_tensors import local_part
from torchyard_trainers.core.optimizers import trainable
from torchyard_trainers.core.parallel import reshard
from torchyard_trainers.core.workload import Session
from torchyard_trainers.lm.models import LanguageModel, Scores


class Scored(NamedTuple):
    """What a model says about the labels of documents: [n, T], 0 where there is no label."""

    log_probability: Tensor
    entropy: Tensor
    value: Tensor


Score = Callable[[Tensor, Tensor], Scored]


def scored(scores: Scores, labels: Tensor) -> Scored:
    """Arrange scores of the labels as the labels are: [n, T]."""
    mask = labels != IGNORE

    def arranged(values: Tensor) -> Tensor:
        return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)

    return Scored(*map(arranged, (scores.log_probability, scores.entropy, scores.value)))


def in_parts(score: Score, tokens: Tensor, labels: Tensor, rows: int | None) -> Scored:
    """Score documents, at most `rows` of them at once."""
    size = rows or len(tokens)
    parts = [score(some, few) for some, few in zip(tokens.split(size), labels.split(size), strict=True)]
    return Scored(*(torch.cat(each) for each in zip(*parts, strict=True)))


def scorer(session: Session, *, temperature: float = 1.0) -> Score:
    """Return a function that scores documents with the model in training, without gradient. Collective if sharded."""
    module = session.parallel.module

    @torch.no_grad()
    def score(tokens: Tensor, labels: Tensor) -> Scored:
        with session.precision.forward():
            found = module(tokens, labels, scores=True, temperature=temperature)
        return scored(found, labels)

    return score


class Reference:
    """The model as it was after the supervised steps, which training is not to leave too far behind.

    Only this rank's parts of the trainable parameters are held, those of the adapters for LoRA. While the reference
    scores, they change places with the parts in training, so that no process ever holds a second model.
    """

    def __init__(self, model: LanguageModel) -> None:
        """Refer to a model, which may be sharded and filled before the first use."""
        self._model = model
        self._held: dict[str, Tensor] = {}

    def renew(self) -> None:
        """Copy the weights in training."""
        with torch.no_grad():
            for live, value in self._pairs():
                value.copy_(live)

    def scorer(self, session: Session, *, temperature: float = 1.0) -> Score:
        """Return a function that scores documents. Collective if sharded."""
        score = scorer(session, temperature=temperature)

        def score_in_place(tokens: Tensor, labels: Tensor) -> Scored:
            self._exchange()
            try:
                return score(tokens, labels)
            finally:
                self._exchange()

        return score_in_place

    def state(self) -> dict[str, Tensor]:
        """Return the weights, which a restore fills in place."""
        if not self._held:
            self._held = {name: torch.zeros_like(each, requires_grad=False) for name, each in self._live().items()}
        return self._held

    def _exchange(self) -> None:
        """Exchange the weights in training and those of the reference, one at a time."""
        with torch.no_grad():
            for live, value in self._pairs():
                before = live.clone()
                live.copy_(value)
                value.copy_(before)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return this rank's parts of each weight in training, and of the same weight of the reference."""
        live = self._live()
        return [(local_part(live[name])[0], local_part(value)[0]) for name, value in self.state().items()]

    def _live(self) -> dict[str, nn.Parameter]:
        reshard(self._model)
        return trainable(self._model)
