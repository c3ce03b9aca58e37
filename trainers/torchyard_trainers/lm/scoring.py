"""Scores of documents as [n, T], by the model in training and by a frozen reference."""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torchyard_trainers.core.companions import Companion
from torchyard_trainers.core.device import only_shapes
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.workload import Session
from torchyard_trainers.core.world import World
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
    with unset_fake_temporarily():
        several = list(zip(tokens.split(size), labels.split(size), strict=True))
    if only_shapes():  # each takes as much memory as the first
        (first,) = [score(*each) for each in several[:1]]
        return Scored(*(torch.cat([each] * len(several))[: len(tokens)] for each in first))
    parts = [score(*each) for each in several]
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

    It holds this rank's parts of the trainable parameters only, those of the adapters for LoRA; no process ever holds a
    second model.
    """

    def __init__(self, model: LanguageModel) -> None:
        """Refer to a model, which may be sharded and filled before the first use."""
        self._model = model

    @cached_property
    def _weights(self) -> Companion:
        weights = Companion(self._model)
        for part in weights.parts:
            part.zero_()  # until it is renewed, it is the same in every run
        return weights

    def renew(self) -> None:
        """Copy the weights in training."""
        self._weights.copy()

    def is_known(self, world: World) -> bool:
        """Return whether weights were copied, in this round or in one that it continues. Collective."""
        if only_shapes():
            return True  # which takes more memory
        nonzero = sum(float(part.count_nonzero()) for part in self._weights.parts)
        return bool(world.total(torch.tensor(nonzero, dtype=torch.float64, device=world.device)) > 0)

    def scorer(self, session: Session, *, temperature: float = 1.0) -> Score:
        """Return a function that scores documents. Collective if sharded."""
        score = scorer(session, temperature=temperature)

        def score_in_place(tokens: Tensor, labels: Tensor) -> Scored:
            with self._weights.in_place():
                return score(tokens, labels)

        return score_in_place

    def state(self) -> dict[str, Tensor]:
        """Return the weights, which a restore fills in place."""
        return self._weights.state()
