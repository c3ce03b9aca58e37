"""Evaluation on the fixed held-out set, spread over ranks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torchyard_trainers.core.evaluation import over_ranks
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.workload import Session
from torchyard_trainers.lm.data.batches import Batch, documents, encode
from torchyard_trainers.lm.data.seen import Seen
from torchyard_trainers.lm.settings import Settings
from torchyard_trainers.lm.tasks import rows_of


class Result(NamedTuple):
    """Sums for each sample of the evaluation set: [n] float64, equal on every rank."""

    loss: Tensor  # negative log-probability of the right answer
    tokens: Tensor  # of the right answer
    exact: Tensor  # 1 if greedy decoding gives the right answer, else 0


def answers(settings: Settings, tokenizer: Any, ids: Any, *, held_out: bool = False) -> Batch:
    """Return prompts and right answers of the task as documents that end with the end token."""
    rows = rows_of(
        settings.task, settings.seed, ids, length=settings.length, symbols=settings.symbols, held_out=held_out
    )
    prompts = encode(tokenizer, [row.prompt for row in rows])
    completions = [[*tokens, tokenizer.eos_token_id] for tokens in encode(tokenizer, [row.answer for row in rows])]
    return documents(prompts, completions, pad=tokenizer.pad_token_id)


def seen_on(seen: Seen | None, device: torch.device) -> dict[str, Any]:
    """Return the arguments of a forward pass of a model that reads images: `seen` and positions; {} of one of text."""
    if seen is None:
        return {}
    there = seen.to(device)
    return {"seen": there, "position_ids": there.positions}


def score_answers(session: Session, made: Callable[[list[int]], Batch], count: int, *, at_once: int) -> Result:
    """Score the right answers of the evaluation set. Collective.

    Greedy decoding gives the right answer exactly if each of its tokens is the most probable one after those before
    it, so that a single pass over the right answers is enough.

    Args:
        session: the model in training.
        made: returns the documents at these positions of the evaluation set.
        count: documents of the set.
        at_once: documents of one forward pass.
    """
    device, model = session.world.device, session.parallel.module

    def measure(positions: list[int]) -> Tensor:
        batch = made(positions)
        tokens, labels = batch.tokens.to(device), batch.labels.to(device)
        scores = model(tokens, labels, scores=True, **seen_on(batch.seen, device))
        with unset_fake_temporarily():  # the labels of a forecast have values
            rows = (labels != IGNORE).nonzero()[:, 0]
        sums = torch.zeros(2, len(tokens), dtype=torch.float64, device=device)
        sums[0].index_add_(0, rows, -scores.log_probability.double())
        sums[1].index_add_(0, rows, (~scores.greedy).double())
        return torch.stack([sums[0], batch.counted.to(device).double(), (sums[1] == 0).double()], 1)

    return Result(*over_ranks(session, measure, count, at_once=at_once).unbind(1))
