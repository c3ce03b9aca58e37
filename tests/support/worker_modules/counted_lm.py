"""A workload that reads documents of different lengths and divides its loss by their tokens."""

from collections.abc import Sequence

import torch
from msgspec import Struct
from torch import nn
from torch.nn.functional import cross_entropy

from torchyard_trainers.core.parameters import read
from torchyard_trainers.core.workload import LossOutput, Mean, MicroBatch, Session, Workload

LETTERS = 16


class Params(Struct, frozen=True, forbid_unknown_fields=True):
    steps: int = 8
    batch: int = 10
    documents: int = 23
    rollout: int = 1


def resolve_params(raw, _parallelism):
    return read(raw, Params)


class Documents:
    """Texts of 3 to 13 letters, made from their ids."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.fingerprint = f"documents-{number}"

    def __len__(self) -> int:
        return self.number

    def lengths(self) -> Sequence[int]:
        return [3 + 7 * each % 11 for each in range(self.number)]

    def read(self, ids):
        texts = [torch.arange(3 + 7 * each % 11).mul(each + 1).remainder(LETTERS) for each in ids]
        return {
            "text": nn.utils.rnn.pad_sequence(texts, batch_first=True),
            "length": torch.tensor([len(text) for text in texts]),
        }


class CountedLm(Workload):
    """Predicts the next letter; counts letters, and remembers when it was prepared."""

    def __init__(self, params: Params) -> None:
        self.params, self.total_steps, self.global_batch = params, params.steps, params.batch
        self.source, self.save_every = Documents(params.documents), params.rollout
        self.log_every, self.offset = 1, -1
        self.identity = {"trainer.name": "counted_lm", "batch": params.batch}

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(LETTERS, 8), nn.Tanh(), nn.Linear(8, LETTERS))

    def learning_rate(self, _step: int) -> float:
        return 1e-2

    def prepare(self, session: Session, step: int) -> dict[str, float]:
        if step % self.save_every:
            return {}
        session.reporter.phase("rollout")
        with torch.no_grad():
            self.offset = int(session.parallel.forward(torch.arange(LETTERS)[None]).argmax()) % LETTERS
        return {"rolloutStep": float(step)}

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        text, length = batch.data["text"], batch.data["length"]
        text = (text + self.offset) % LETTERS  # what a step learns depends on the rollout
        logits = session.parallel.forward(text)[:, :-1]
        losses = cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten(), reduction="none").view_as(text[:, 1:])
        counts = (torch.arange(losses.shape[1]) < length[:, None] - 1) * batch.weights[:, None]
        right = (logits.argmax(-1) == text[:, 1:]) * counts
        lengths = Mean((length * batch.weights).sum(), batch.weights.sum())
        return LossOutput((losses * counts).sum(), {"accuracy": right.sum(), "letters": lengths}, counts.sum())
