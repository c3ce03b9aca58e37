"""Scores of documents as [n, T], by the model in training and by a frozen reference."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.core.frozen import frozen
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.weights import allocate
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
    """A frozen copy of the model, which training is not to leave too far behind."""

    def __init__(self, model: LanguageModel) -> None:
        """Copy a model that is not sharded yet."""
        self._model = frozen(model).eval()
        if any(each.is_meta for each in self._model.parameters()):  # the weights come later, and `renew` copies them
            allocate(self._model, torch.device("cpu"))
            for each in self._model.parameters():
                each.detach().zero_()

    def renew(self, session: Session) -> None:
        """Copy the weights in training. Collective."""
        self._model.to(session.world.device)
        session.parallel.copy_to(self._model)

    def scorer(self, session: Session, *, temperature: float = 1.0) -> Score:
        """Return a function that scores documents."""
        self._model.to(session.world.device)

        @torch.no_grad()
        def score(tokens: Tensor, labels: Tensor) -> Scored:
            with session.precision.casting():
                found = self._model(tokens, labels, scores=True, temperature=temperature)
            return scored(found, labels)

        return score

    def state(self) -> dict[str, Any]:
        """Return the weights, which a restore fills in place."""
        return self._model.state_dict()
