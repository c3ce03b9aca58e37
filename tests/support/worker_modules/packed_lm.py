"""A workload that reads texts from a file, pads or packs them, and can skip bad ones."""

import torch
from msgspec import Struct
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.utils.rnn import pad_sequence

from torchyard_trainers.core.data.opening import open_rows
from torchyard_trainers.core.data.packing import concatenated
from torchyard_trainers.core.data.rows import field_of
from torchyard_trainers.core.data.samples import Samples
from torchyard_trainers.core.data.scan import scan
from torchyard_trainers.core.parameters import read
from torchyard_trainers.core.workload import LossOutput, Mean, MicroBatch, Session, Workload

LETTERS = 26


class Params(Struct, frozen=True, forbid_unknown_fields=True):
    data: str
    steps: int = 8
    batch: int = 10
    skip: bool = False
    packs: bool = False


def resolve_params(raw, parallelism):
    return read({**raw, "packs": parallelism.micro_batch_tokens is not None}, Params)


def encode(row):
    return torch.tensor([ord(letter) - ord("a") for letter in field_of(row, "text", str)])


def padded(texts):
    """One text a row; `document` says whose weight a token has, `positions` are -1 after the end."""
    tokens = pad_sequence(texts, batch_first=True)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    inside = positions < torch.tensor([len(text) for text in texts])[:, None]
    document = torch.arange(len(texts))[:, None].expand_as(tokens)
    return {"tokens": tokens, "positions": positions.where(inside, -1), "document": document}


class PackedLm(Workload):
    """Predicts the next letter from the last two of the same text."""

    def __init__(self, params: Params) -> None:
        self.total_steps, self.global_batch, self.log_every = params.steps, params.batch, 1
        rows = open_rows([params.data])
        found = scan(rows, encode, len, skip_bad=params.skip)
        self.bad = found.bad
        self.source = Samples(rows, encode, concatenated if params.packs else padded, scan=found)
        self.identity = {"trainer.name": "packed_lm", "batch": params.batch}

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2 * LETTERS, 16), nn.Tanh(), nn.Linear(16, LETTERS))

    def learning_rate(self, _step: int) -> float:
        return 1e-2

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        tokens, positions = batch.data["tokens"], batch.data["positions"]
        seen = one_hot(tokens, LETTERS).float()
        before = seen.roll(1, 1) * (positions > 0)[..., None]
        logits = session.parallel.forward(torch.cat([seen, before], -1))[:, :-1]
        counts = (positions[:, 1:] > 0) * batch.weights[batch.data["document"][:, 1:]]
        losses = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view_as(counts)
        weights = batch.weights.sum()
        skipped = Mean(self.bad * weights, weights)
        return LossOutput((losses * counts).sum(), {"skippedRecords": skipped}, counts.sum())
