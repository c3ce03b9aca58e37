"""A workload of a newcomer's own, all of it: characters of texts that are made as needed, and a small network."""

import torch
from msgspec import Struct
from torch import nn
from torch.nn.functional import cross_entropy

from torchyard_trainers.core.parameters import read
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key
from torchyard_trainers.core.workload import LossOutput, MicroBatch, Session, Workload

LETTERS, LENGTH = 16, 24


class Params(Struct, frozen=True, forbid_unknown_fields=True):
    steps: int = 8
    batch: int = 12
    width: int = 16
    rate: float = 1e-2


def resolve_params(raw, _parallelism):
    return read(raw, Params)


class Model(nn.Module):
    """Scores the next letter; one matrix turns letters into vectors and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, width)
        self.inner = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, LETTERS, bias=False)
        self.head.weight = self.letters.weight

    def forward(self, text):
        """[B, T] int64 -> [B, T - 1, letters]: the next letter, given two."""
        seen = self.letters(text)
        pairs = torch.cat([seen[:, :-1], seen.roll(1, 1)[:, :-1]], -1)
        return self.head(torch.tanh(self.inner(pairs)))


class CharLm(Workload):
    """Learns texts in which every letter follows from the two before it."""

    def __init__(self, params: Params) -> None:
        self.params, self.total_steps, self.global_batch = params, params.steps, params.batch
        self.log_every, self.eval_every = 1, 4
        self.identity = {"trainer.name": "char_lm", "width": params.width, "batch": params.batch}

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Model(self.params.width)

    def learning_rate(self, _step: int) -> float:
        return self.params.rate

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        return LossOutput((_surprise(session.parallel.forward, batch.ids, "train") * batch.weights).sum(), {})

    @torch.no_grad()
    def evaluate(self, session: Session) -> dict[str, float]:
        ids = torch.arange(64, device=session.world.device)
        return {"evalLoss": _surprise(session.parallel.module, ids, "evaluation").mean().item()}


def _surprise(model: nn.Module, ids, stream: str):
    """[B] -> [B], the mean over each text."""
    letters = [*(split_keys(sample_keys(stream_key(1, stream), ids), 2) % LETTERS).unbind(1)]
    while len(letters) < LENGTH:
        letters.append((letters[-1] + 3 * letters[-2] + 1) % LETTERS)
    text = torch.stack(letters, 1)
    return cross_entropy(model(text).transpose(1, 2), text[:, 1:], reduction="none").mean(1)
