"""A custom workload: a small language model that learns this file, one character after the other.

`torchyard run examples/chars.yaml` trains it. Everything else (DDP, FSDP, precision, accumulation, checkpoints, resume,
metrics, `torchyard plan`) works as for a built-in workload.
"""

from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from torchyard_trainers import LossOutput, MicroBatch, Session, Workload, read

TEXT = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
HELD_OUT = 512  # bytes at the end that are not trained on


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`spec.trainer.params`. An unknown or wrong parameter ends the job before training, with exit code 64."""

    steps: int = 300
    batch: int = 32
    context: int = 32
    width: int = 64


def resolve_params(raw: dict[str, object], _parallelism: object) -> Params:
    """Check `spec.trainer.params`; the result is passed to the class."""
    return read(raw, Params)


class Model(nn.Module):
    """A convolution over the last eight characters, and a head over the next one."""

    def __init__(self, width: int) -> None:
        """Create a model with `width` channels."""
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.convolution = nn.Conv1d(width, 4 * width, kernel_size=8, padding=7)
        self.head = nn.Linear(4 * width, 256)

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits of the next character: [batch, time] int64 -> [batch, time, 256]."""
        hidden = self.convolution(self.embedding(text).transpose(1, 2))[..., : text.shape[1]]
        return self.head(nn.functional.gelu(hidden).transpose(1, 2))


class Chars(Workload):
    """The workload: a model, a data set and a loss."""

    def __init__(self, params: Params) -> None:
        """Describe the run."""
        self.params = params
        self.total_steps, self.global_batch = params.steps, params.batch
        self.dataset_size = len(TEXT) - HELD_OUT - params.context  # one sample for each position in the text
        self.identity = {"trainer.name": "chars", "context": params.context, "width": params.width}

    def build(self) -> nn.Module:
        """Build the model on the CPU, with the same weights in every process."""
        torch.manual_seed(0)
        return Model(self.params.width)

    def learning_rate(self, step: int) -> float:
        """Decay the learning rate linearly."""
        return 3e-3 * (1 - step / self.total_steps)

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        """Return the sum of the samples' losses, each times its weight (0 for padding), and the same for statistics."""
        with session.data_wait:
            text = self._samples(batch.ids)
        logits = session.parallel.forward(text[:, :-1])
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), text[:, 1:], reduction="none").mean(1)
        correct = (logits.argmax(-1) == text[:, 1:]).float().mean(1)
        return LossOutput((losses * batch.weights).sum(), {"accuracy": (correct * batch.weights).sum()})

    @torch.no_grad()
    def evaluate(self, session: Session) -> dict[str, float]:
        """Return the mean loss on the held-out text, the same on every rank."""
        ids = torch.arange(self.dataset_size, len(TEXT) - self.params.context, 8, device=session.world.device)
        text = self._samples(ids)
        logits = session.parallel.module(text[:, :-1])
        return {"evalLoss": nn.functional.cross_entropy(logits.transpose(1, 2), text[:, 1:]).item()}

    def score(self, metrics: dict[str, float]) -> float | None:
        """Rank checkpoints by the held-out loss, for `checkpoint.keepBest`."""
        return metrics.get("evalLoss")

    def _samples(self, ids: Tensor) -> Tensor:
        """Return the texts at positions `ids` [m]: [m, context + 1]."""
        positions = ids.cpu()[:, None] + torch.arange(self.params.context + 1)
        return TEXT[positions].to(ids.device)
