"""`plan`: whether a job fits its GPUs, told before it is started, and the cheapest change that makes it fit."""

import argparse
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from torchyard_trainers import registry
from torchyard_trainers.core.batching import split
from torchyard_trainers.core.config import Config, Fsdp, Parallelism
from torchyard_trainers.core.forecast import LooksAtNumbersError, Usage, forecast, imagined_world, room_on
from torchyard_trainers.core.micro_batches import largest_that_fits
from torchyard_trainers.core.parallel import SHARDED, choose_strategy, strategy_by_memory
from torchyard_trainers.core.world import World


class Try(NamedTuple):
    """One way to run the job, and what it takes."""

    settings: Parallelism
    strategy: str
    micro_batch: int
    usage: Usage


class Planner:
    """Makes forecasts of one job. They are few: each takes seconds."""

    def __init__(self, config: Config, world: World, memory: int | None) -> None:
        """Plan for ranks with GPUs of `memory` bytes, or ranks on a CPU (None)."""
        self.config, self.world = config, world
        fraction = config.parallelism.memory_fraction
        self.room = room_on(memory, world.size, fraction) if memory is not None else None
        work = registry.build(config)
        self.per_rank = -(-work.global_batch // world.size)
        self.global_batch = work.global_batch
        self.parameters = sum(each.numel() for each in work.build().parameters())
        self.real = False
        precision = config.parallelism.precision
        self.precision = precision if precision != "auto" else "fp32" if memory is None else "bf16"
        self._usages: dict[tuple[object, ...], Usage] = {}

    def as_asked(self) -> Try:
        """Forecast the job as it is written."""
        settings = self.config.parallelism
        strategy = choose_strategy(settings, self.world.size)
        if settings.strategy == "auto" and strategy == "ddp" and self.room is not None:
            strategy = strategy_by_memory(self.parameters, self.room, self.world.size, self.world.local_size)
        return self.fitted(settings, strategy)

    def cheapest(self, asked: Try) -> Try | None:
        """Give the first change that fits, those that cost least time first; None if nothing helps."""
        for settings, strategy in _changes(asked, self.world):
            if self._fits(self._forecast(settings, strategy, 1)):
                return self.fitted(settings, strategy)
        return None

    def fitted(self, settings: Parallelism, strategy: str) -> Try:
        """Forecast with the micro-batch that the settings say; `auto` is the largest that fits, as in the job."""

        def at(size: int) -> Try:
            return self._forecast(settings, strategy, size)

        if settings.micro_batch_size != "auto":
            return at(min(settings.micro_batch_size, self.per_rank))
        if self.room is None or self._fits(at(self.per_rank)):
            return at(self.per_rank)
        room = self.room
        return at(largest_that_fits(self.per_rank, lambda size: at(size).usage.total / room))

    def fits(self, found: Try) -> bool | None:
        """Whether it fits; None without a GPU to fit."""
        return None if self.room is None else self._fits(found)

    def _fits(self, found: Try) -> bool:
        return self.room is None or found.usage.total <= self.room

    def _forecast(self, settings: Parallelism, strategy: str, size: int) -> Try:
        key = (settings.activation_checkpointing, settings.cpu_offload, settings.fsdp.reshards, strategy, size)
        if key not in self._usages:
            try:
                self._usages[key] = self._make(settings, strategy, size)
            except LooksAtNumbersError:
                self.real = True
                self._usages[key] = self._make(settings, strategy, size)
        return Try(settings, strategy, size, self._usages[key])

    def _make(self, settings: Parallelism, strategy: str, size: int) -> Usage:
        return forecast(
            registry.build(self.config),
            self.world,
            strategy,
            settings=settings,
            precision=self.precision,
            micro_batch=size,
            real=self.real,
        )

    def told(self, found: Try) -> dict[str, Any]:
        """Say what a try is and takes."""
        size = len(split(self.global_batch, self.world.size, 0, found.micro_batch)[0].positions)
        usage = found.usage
        return {
            "strategy": found.strategy,
            "precision": self.precision,
            "activationCheckpointing": found.settings.activation_checkpointing,
            "cpuOffload": found.settings.cpu_offload,
            "microBatchSize": size,
            "accumulation": -(-self.per_rank // size),
            "bytes": {**usage._asdict(), "total": usage.total},
            "fits": self.fits(found),
        }


def plan(config: Config, options: argparse.Namespace) -> str:
    """Give the forecast as JSON.

    Args:
        config: of the job.
        options: `world`, `local` ranks on a node, `memory` bytes of a GPU (None: a CPU).
    """
    registry.check(config)
    with imagined_world(options.world, options.local) as world:
        planner = Planner(config, world, options.memory)
        asked = planner.as_asked()
        change = None
        if planner.fits(asked) is False and (found := planner.cheapest(asked)):
            change = {"set": _difference(asked, found), **planner.told(found)}
        document = {
            "ranks": world.size,
            "parameters": planner.parameters,
            "memory": options.memory,
            "room": planner.room,
            "how": "a real step on the CPU" if planner.real else "a step of shapes",
            "job": planner.told(asked),
            "change": change,
        }
    return json.dumps(document, indent=2) + "\n"


def _changes(asked: Try, world: World) -> Iterator[tuple[Parallelism, str]]:
    """Give what may help, in order of what it costs: accumulate, compute again, communicate, move to the host."""

    def with_(**changes: Any) -> Parallelism:
        return msgspec.structs.replace(asked.settings, micro_batch_size="auto", **changes)

    ways = ("none", "selective", "full")
    more = ways[ways.index(asked.settings.activation_checkpointing) :]
    for way in more:
        yield with_(activation_checkpointing=way), asked.strategy
    if asked.strategy in SHARDED and not asked.settings.fsdp.reshards:
        for way in more:
            yield with_(activation_checkpointing=way, fsdp=Fsdp()), asked.strategy
    sharded = []
    if asked.strategy not in SHARDED and 1 < world.local_size < world.size:
        sharded.append("hsdp")
    if asked.strategy != "fsdp" and world.size > 1:
        sharded.append("fsdp")
    for strategy in sharded:
        for way in more:
            yield with_(activation_checkpointing=way, strategy=strategy, fsdp=Fsdp()), strategy
    widest = asked.strategy if asked.strategy == "fsdp" or world.size == 1 else "fsdp"
    widest = "fsdp" if widest == "single" else widest
    yield with_(activation_checkpointing="full", strategy=widest, fsdp=Fsdp(), cpu_offload=True), widest


def _difference(asked: Try, found: Try) -> dict[str, Any]:
    """Give the fields of `spec` to set, so that the job is what was found."""
    fields = {
        "strategy": "strategy",
        "activation_checkpointing": "activationCheckpointing",
        "cpu_offload": "cpuOffload",
    }
    changed = {
        f"parallelism.{name}": getattr(found.settings, field)
        for field, name in fields.items()
        if getattr(found.settings, field) != getattr(asked.settings, field)
    }
    before, after = asked.settings.fsdp, found.settings.fsdp
    if before.sharding != after.sharding:
        changed["parallelism.fsdp.sharding"] = after.sharding
    if before.reshard_after_forward != after.reshard_after_forward:
        changed["parallelism.fsdp.reshardAfterForward"] = after.reshard_after_forward
    if asked.settings.micro_batch_size != "auto" and found.micro_batch != asked.micro_batch:
        changed["parallelism.microBatchSize"] = found.micro_batch
    return changed
