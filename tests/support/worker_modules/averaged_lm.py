"""The little language model with a moving average of its weights, as a custom workload."""

import torch
from little_lm import LittleLm, Sizes

from torchyard_trainers.core.evaluation import over_ranks
from torchyard_trainers.core.randomness import sample_keys, stream_key
from torchyard_trainers.core.workload import Workload


class Averaged(LittleLm):
    """Evaluates the loss of fixed samples every two steps."""

    eval_every = 2
    after_step, score = Workload.after_step, Workload.score

    def __init__(self, params) -> None:
        super().__init__(Sizes(steps=params.get("steps", 6), batch=10))
        self.average_decay = params.get("decay")

    def evaluate(self, session):
        def measure(positions):
            keys = sample_keys(stream_key(2, "eval"), torch.tensor(positions))[:, None]
            text = (keys + torch.arange(self.sizes.length + 1)) % self.sizes.vocabulary
            return torch.stack([session.parallel.module(each[None], torch.ones(1)) for each in text])

        return {"evalLoss": float(over_ranks(session, measure, 6, at_once=2).mean())}


def resolve_params(params, parallelism):
    return dict(params)
