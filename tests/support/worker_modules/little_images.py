"""Pictures as a newcomer would learn them: BatchNorm, also of single numbers, Dropout, a set that nothing divides."""

import torch
from msgspec import Struct
from torch import nn
from torch.nn.functional import cross_entropy

from torchyard_trainers.core.parameters import read
from torchyard_trainers.core.workload import LossOutput, MicroBatch, Session, Workload

PICTURES, HELD_OUT, CLASSES, WIDTH = 103, 37, 4, 8


class Params(Struct, frozen=True, forbid_unknown_fields=True):
    steps: int = 6
    broken: int = -1  # the step whose pictures are no numbers
    finite: bool = False  # a set that is shuffled, not counted through again and again


def resolve_params(raw, _parallelism):
    return read(raw, Params)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.picture = nn.Sequential(nn.Conv2d(1, WIDTH, 3), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))

    def forward(self, pictures):
        """[B, 1, 8, 8] -> [B, classes]."""
        return self.head(self.picture(pictures).mean((2, 3)))


class Images(Workload):
    log_every = eval_every = 1

    def __init__(self, params: Params) -> None:
        self.params, self.total_steps, self.global_batch = params, params.steps, 12
        self.identity = {"trainer.name": "images"}
        self.dataset_size = PICTURES if params.finite else None

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Model()

    def blocks(self, model):
        return [model.picture, model.head]

    def optimizer(self, model):
        learned = list(model.parameters())
        flat, other = [[each for each in learned if (each.dim() > 1) is not vector] for vector in (True, False)]
        return torch.optim.AdamW([{"params": flat, "lr_scale": 0.5}, {"params": other, "weight_decay": 0.1}])

    def learning_rate(self, _step: int) -> float:
        return 1e-2

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        pictures, classes = _made(batch.ids % PICTURES)
        if batch.ids[0] // self.global_batch == self.params.broken:
            pictures = pictures * torch.nan
        found = session.parallel.forward(pictures)
        return LossOutput((cross_entropy(found, classes, reduction="none") * batch.weights).sum(), {})

    @torch.no_grad()
    def evaluate(self, session: Session) -> dict[str, float]:
        model = session.parallel.module.eval()
        pictures, classes = _made(torch.arange(PICTURES, PICTURES + HELD_OUT))
        found = cross_entropy(model(pictures).float(), classes)
        model.train()
        return {"evalLoss": found}

    def score(self, metrics):
        return metrics.get("evalLoss")


def _made(ids):
    """One of four corners is bright."""
    classes = ids % CLASSES
    places = torch.arange(8) // 4
    corner = 2 * places[:, None] + places
    noise = torch.sin(ids[:, None, None] * 12.9898 + torch.arange(64).view(8, 8) * 78.233)
    return ((corner == classes[:, None, None]) + 0.3 * noise)[:, None], classes
