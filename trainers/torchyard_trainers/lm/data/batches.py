"""Rows as tensors: prompts and answers, padded on the right, with labels for the answers only."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.lm.data.seen import Seen


class Batch(NamedTuple):
    """Documents padded on the right, and what follows each token: [B, T]."""

    tokens: Tensor
    labels: Tensor  # `IGNORE` where the next token is part of the prompt or padding
    seen: Seen | None = None  # of a model that reads images

    @property
    def counted(self) -> Tensor:
        """The labels of each document that count: [B]."""
        return (self.labels != IGNORE).sum(-1)


def encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each text, without special tokens."""
    found: list[list[int]] = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return found


def documents(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], *, pad: int) -> Batch:
    """Return each prompt followed by its completion; only the completions' tokens are labels.

    The last token of a document has no successor, so it is no input.
    """
    with unset_fake_temporarily():  # made of numbers, and so are the labels of a forecast
        return _documents(prompts, completions, pad)


def _documents(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad: int) -> Batch:
    width = max(len(prompt) + len(completion) for prompt, completion in zip(prompts, completions, strict=True)) - 1
    tokens = torch.full((len(prompts), width), pad)
    labels = torch.full((len(prompts), width), IGNORE)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        whole = [*prompt, *completion]
        tokens[row, : len(whole) - 1] = torch.tensor(whole[:-1])
        labels[row, len(prompt) - 1 : len(whole) - 1] = torch.tensor(completion)
    return Batch(tokens, labels)
