"""Workers whose numbers break, for tests: imported by the warm parent."""

import itertools
import math
import os
import threading

import torch

from torchyard_trainers.core.command import main
from torchyard_trainers.core.export import weights
from torchyard_trainers.core.workload import LossOutput
from torchyard_trainers.cvrp.task import Cvrp


def train_with_nan(sample: int, times: int) -> int:
    """Train, but the loss of the micro-batch that holds a sample is not a number, the first `times` times."""
    loss = Cvrp.loss
    count = itertools.count()

    def broken(self, session, batch):
        terms = loss(self, session, batch)
        if sample in batch.ids.tolist() and next(count) < times:
            return LossOutput(terms.loss * math.nan, terms.statistics)
        return terms

    Cvrp.loss = broken
    return main([])


def train_with_spike(sample: int, times: int, rank: int | None = None) -> int:
    """Train, but the loss of the micro-batch that holds a sample is larger, the first `times` times.

    `rank`: only as this rank computes it.
    """
    loss = Cvrp.loss
    count = itertools.count()
    here = rank is None or int(os.environ.get("RANK", "0")) == rank

    def broken(self, session, batch):
        terms = loss(self, session, batch)
        if here and sample in batch.ids.tolist() and next(count) < times:
            return LossOutput(terms.loss * 1e4, terms.statistics)
        return terms

    Cvrp.loss = broken
    return main([])


def train_with_flipped_bit(rank: int, step: int, bit: int) -> int:
    """Train, but before a step one bit of a weight of one rank flips, once."""
    loss = Cvrp.loss
    flips = iter([True])

    def broken(self, session, batch):
        if session.world.rank == rank and batch.step == step and next(flips, False):
            weight = max(session.parallel.module.parameters(), key=lambda each: each.numel())
            with torch.no_grad():
                weight.view(torch.int32).view(-1)[7] ^= 1 << bit
        return loss(self, session, batch)

    Cvrp.loss = broken
    return main([])


def train_with_a_hang(sample: int) -> int:
    """Train, but the rank that holds a sample stands still when it comes to it."""
    loss = Cvrp.loss

    def hangs(self, session, batch):
        if sample in batch.ids.tolist():
            threading.Event().wait()
        return loss(self, session, batch)

    Cvrp.loss = hangs
    return main([])


def preflight_with_versions(versions: list[str]) -> int:
    """Check, but each rank says it has another version of torch."""
    torch.__version__ = versions[int(os.environ["RANK"])]
    return main([])


def export_to_a_disk_that_flips_a_bit() -> int:
    """Train and export, but what is written as weights of an export differs in its last byte."""
    save = weights.save

    def flip(tensors, path):
        save(tensors, path)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    weights.save = flip
    return main([])
