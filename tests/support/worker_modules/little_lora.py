"""A frozen base with low-rank adapters, optimized by Muon and AdamW, to see what a checkpoint holds."""

import torch
from little_lm import LittleLm, Model, Sizes
from torch import nn

from torchyard_trainers.core.optimizers import muon


class Adapted(nn.Module):
    """A linear layer that stays as it is, plus a product of two small matrices."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, inputs):
        return self.base(inputs) + self.up(self.down(inputs))


class LittleLora(LittleLm):
    """Only the adapters of the feed-forward layers learn; `moving` also changes a frozen parameter."""

    def __init__(self, params) -> None:
        super().__init__(Sizes(steps=params.pop("steps", 6)))
        self.seed, self.moving = params.pop("seed", 0), params.pop("moving", False)

    def build(self):
        torch.manual_seed(self.seed)
        model = Model(self.sizes).requires_grad_(requires_grad=False)
        torch.manual_seed(7)
        for block in model.blocks:
            block.wide = Adapted(block.wide, 4)
        return model

    def optimizer(self, model):
        return muon(model, 1e-2)

    def learning_rate(self, step):
        return 1e-2

    def after_step(self, session, step, means):
        if self.moving:
            with torch.no_grad():
                session.parallel.module.norm.weight.data.mul_(0.9)
        return {}


def resolve_params(params, parallelism):
    return dict(params)
