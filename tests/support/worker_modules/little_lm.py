"""A small language model as a newcomer would write a workload: smooth, so that it can be compared in any precision.

Imported by the warm parent of test workers; `train` runs it in place of a built-in workload.
"""

import gc
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.optim import AdamW

from torchyard_trainers import registry
from torchyard_trainers.core.command import main
from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.losses import linear_cross_entropy
from torchyard_trainers.core.memory import micro_batches
from torchyard_trainers.core.memory.limits import HostMemory
from torchyard_trainers.core.parallel import SHARDED, parallelize
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.randomness import sample_keys, stream_key
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.workload import LossOutput, MicroBatch, Session, Workload
from torchyard_trainers.core.world import join


class Sizes(NamedTuple):
    width: int = 16
    heads: int = 2
    layers: int = 2
    vocabulary: int = 32
    length: int = 12
    batch: int = 12
    steps: int = 6


class Block(nn.Module):
    """Causal attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens):
        """[B, T, d] -> [B, T, d]."""
        batch, length, width = tokens.shape
        parts = self.inputs(self.norms[0](tokens)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        tokens = tokens + self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return tokens + self.narrow(functional.gelu(self.wide(self.norms[1](tokens))))


class Model(nn.Module):
    """Sum of the cross-entropy of each next token, with weights for samples."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes.width, sizes.heads) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, text, weights):
        """[B, T + 1] int64, [B] -> one number."""
        tokens = self.embedding(text[:, :-1])
        for block in self.blocks:
            tokens = block(tokens)
        target = text[:, 1:].masked_fill(weights[:, None] == 0, -100)
        return linear_cross_entropy(self.norm(tokens).flatten(0, 1), self.head.weight, target.flatten())


class LittleLm(Workload):
    """Learns to count: each sample is a walk with a step of its own through the vocabulary."""

    log_every = 1
    max_grad_norm = 0.1  # always clips

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.total_steps, self.global_batch = sizes, sizes.steps, sizes.batch
        self.identity = {"trainer.name": "little", **sizes._asdict()}
        self.identity.pop("steps")
        self.architecture = ("trainer.name",)

    def build(self):
        torch.manual_seed(0)
        return Model(self.sizes)

    def blocks(self, model):
        return list(model.blocks)

    def optimizer(self, model):
        return AdamW(model.parameters(), lr=1e-3, fused=True)

    def learning_rate(self, step):
        return 1e-3

    def begin(self, session: Session):
        return {}

    def loss(self, session: Session, batch: MicroBatch) -> LossOutput:
        keys = sample_keys(stream_key(1, "train"), batch.ids)[:, None]
        places = torch.arange(self.sizes.length + 1, device=batch.ids.device)
        text = (keys % self.sizes.vocabulary + places * (1 + keys % 5)) % self.sizes.vocabulary
        return LossOutput(session.parallel.forward(text, batch.weights) / self.sizes.length, {})

    def after_step(self, session, step, means):
        return {}

    def evaluate(self, session):
        return {}

    def score(self, metrics):
        return None

    def state(self):
        return {}

    def summary(self, metrics):
        return {"text": f"loss {metrics['loss']:.3f}"}


def use(sizes: dict[str, Any]) -> None:
    """Register the little model in this process, whatever the config names."""
    registry.check = lambda config: None
    registry.build = lambda config: LittleLm(Sizes(**sizes))


def train(sizes: dict[str, Any]) -> int:
    """Train it as the command line would train a built-in workload."""
    use(sizes)
    return main([])


def train_within(sizes: dict[str, Any], room: list[int]) -> int:
    """Train where rank r may use `room[r]` bytes more than it has when its memory is first asked for."""

    class Bounded(HostMemory):
        @property
        def limit(self) -> int:
            return self.peak() + room[int(os.environ["RANK"])]

    micro_batches.memory_of = lambda *_: Bounded(1)
    return train(sizes)


def train_counting_states(sizes: dict[str, Any], file: str) -> int:
    """Train, and write how many optimizers have their state while micro-batches are tried."""
    search = micro_batches.largest_that_fits

    def counted(*asked):
        living = [each for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer) and each.state]
        Path(file).write_text(str(len(living)))
        return search(*asked)

    micro_batches.largest_that_fits = counted
    return train(sizes)


def train_where_accumulating_takes(sizes: dict[str, Any], more: int, room: int) -> int:
    """Train in `room` bytes, of which a micro-batch takes 50 and one for each sample, and two of them `more`."""

    class Told:
        limit, taken = room, 0

        def start(self) -> None:
            pass

        def peak(self) -> int:
            return Told.taken

    def counted(work, session, ids, slots):
        Told.taken = 50 + len(slots[0].positions) + more * (len(slots) - 1)
        return accumulate(work, session, ids, slots)

    accumulate, micro_batches.accumulate = micro_batches.accumulate, counted
    micro_batches.memory_of = lambda *_: Told()
    return train(sizes)


def train_overflowing(sizes: dict[str, Any]) -> int:
    """Train where one number's gradient is never finite: of ranks that share the parameter out, only one holds it."""
    forward = Model.forward

    def steep(self, text, weights):
        return forward(self, text, weights) + (0 * self.norm.weight[0]).sqrt()

    Model.forward = steep
    return train(sizes)


def train_out_of_memory(sizes: dict[str, Any], most: int) -> int:
    """Train where the device has no room for micro-batches of more than `most` samples, which nothing foresaw."""
    loss = LittleLm.loss

    def runs_out(self, session, batch):
        if len(batch.ids) > most and session.reporter.facts["phase"] == "step":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return loss(self, session, batch)

    LittleLm.loss = runs_out
    return train(sizes)


def accumulate_two(strategy: str, file: str) -> None:
    """Write what each rank holds of a gradient after an inner micro-batch and after the last one: its sum, or None."""
    work, settings = LittleLm(Sizes()), Parallelism(precision="fp32")
    with join("cpu", needs_group=True) as world:
        model = work.build()
        precision = Precision("fp32", world.device, sharded=strategy in SHARDED)
        parallel = parallelize(model, work.blocks(model), strategy, settings=settings, precision=precision, world=world)
        session = Session(parallel, precision, world, Reporter(None, rank=world.rank, local_rank=0, round_number=0), 1)
        held = []
        for number in range(2):
            ids = torch.tensor([2 * number + world.rank])
            with parallel.accumulating(last=number == 1):
                work.loss(session, MicroBatch(ids, torch.ones(1))).loss.backward()
            grad = model.norm.weight.grad
            whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
            held.append(world.gather(None if whole is None else whole.sum().item()))
        if world.is_main:
            Path(file).write_text(json.dumps(held))
