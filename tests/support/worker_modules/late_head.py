"""A workload one of whose parameters gets its first gradient late: a correction that is added after some steps."""

import torch
from char_lm import LETTERS, CharLm, Model, Params, _surprise, resolve_params
from torch import nn

from torchyard_trainers.core.workload import LossOutput, MicroBatch, Session

__all__ = ["LateHead", "resolve_params"]
FIRST = 4  # step from which on it takes part


class Corrected(Model):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.correction = nn.Parameter(torch.zeros(LETTERS))
        self.late = False

    def forward(self, text):
        scores = super().forward(text)
        return scores + self.correction if self.late else scores


class LateHead(CharLm):
    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.identity = {**self.identity, "trainer.name": "late_head"}

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Corrected(self.params.width)

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        session.parallel.module.late = bool(batch.ids[0] >= FIRST * self.global_batch)
        return LossOutput((_surprise(session.parallel.forward, batch.ids, "train") * batch.weights).sum(), {})


class LateAdapter(LateHead):
    """Its adapter is no part of the loss at all."""

    def build(self) -> nn.Module:
        model = Corrected(self.params.width).requires_grad_(requires_grad=True)
        model.late = True
        model.lora_spare = nn.Linear(2, 2, bias=False)
        return model

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        return LossOutput((_surprise(session.parallel.forward, batch.ids, "train") * batch.weights).sum(), {})
