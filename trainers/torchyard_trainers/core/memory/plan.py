"""`plan`: whether a job will fit its GPUs, and the cheapest change that makes it fit."""

import json
import math
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, NamedTuple

import msgspec

from torchyard_trainers import registry
from torchyard_trainers.core.batching import split
from torchyard_trainers.core.config import Config, Fsdp, Parallelism
from torchyard_trainers.core.data.packing import packing_of
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.memory.forecast import LooksAtNumbersError, Usage, forecast, imagined_world, room_on
from torchyard_trainers.core.memory.limits import IN_TENSORS
from torchyard_trainers.core.memory.micro_batches import divisible
from torchyard_trainers.core.parallel import SHARDED, choose_strategy, state_bytes, strategy_by_memory
from torchyard_trainers.core.precision import resolved
from torchyard_trainers.core.weights import built
from torchyard_trainers.core.workload import ids_of_step
from torchyard_trainers.core.world import World

MIB = 1024**2


class Try(NamedTuple):
    """One configuration of the job, and its memory."""

    settings: Parallelism
    strategy: str
    micro_batch: int
    usage: Usage


class Planner:
    """Forecasts configurations of one job; each takes about as long as a step of one sample on a CPU."""

    def __init__(self, config: Config, world: World, memory: int | None, *, bf16: bool = True) -> None:
        """Plan for ranks with GPUs of `memory` bytes, with or without bf16, or for ranks on a CPU (None).

        Raises:
            ConfigError: the GPU is too small for any tensor, or lacks bf16 and the job requires it.
        """
        # Compiled blocks need less; a forecast does not compile.
        eager = msgspec.structs.replace(config.parallelism, compile=False)
        self.config, self.world = msgspec.structs.replace(config, parallelism=eager), world
        fraction = config.parallelism.memory_fraction
        self.room = room_on(memory, world.size, fraction) if memory is not None else None
        if memory is not None and self.room is not None and self.room < 1:
            kept = memory - room_on(memory, world.size) / IN_TENSORS
            raise ConfigError(
                f"--memory: a GPU of {memory / MIB:.0f} MiB has no room for tensors, since a CUDA context and NCCL "
                f"take {kept / MIB:.0f} MiB of it; name a larger GPU"
            )
        work = registry.build(self.config)
        self.per_rank = -(-work.global_batch // world.size)
        self.global_batch = work.global_batch
        model = built(work)
        self.parameters = sum(each.numel() for each in model.parameters())
        self.trainable = sum(each.numel() for each in model.parameters() if each.requires_grad)
        self.precision = resolved(config.parallelism.precision, gpu=memory is not None, bf16=bf16)
        self.state = state_bytes(model, precision=self.precision, averaged=work.average_decay is not None)
        self.divisible = divisible(work, model)
        self.tokens = config.parallelism.micro_batch_tokens
        packing = packing_of(work.source, self.tokens, divisible=self.divisible)
        self.packed = len(packing.micro_batches(ids_of_step(work, 0), world.size, 0)) if packing is not None else None
        self.real = work.reads_values
        self._usages: dict[tuple[object, ...], Usage] = {}

    def as_asked(self) -> Try:
        """Forecast the job as its file describes it."""
        settings = self.config.parallelism
        strategy = choose_strategy(settings, self.world.size)
        if settings.strategy == "auto" and strategy == "ddp" and self.room is not None:
            strategy = strategy_by_memory(self.state, self.room, self.world.size, self.world.local_size)
        return self.fitted(settings, strategy)

    def cheapest(self, asked: Try) -> Try | None:
        """Return the first change that fits, in order of increasing cost in time; None if none does.

        The last option of each group needs least: if it does not fit, the others are not tried.
        """
        for ways in _changes(asked, self.world, accumulate=self.divisible and self.packed is None):
            if self._can_fit(*ways[-1]):
                return self.fitted(*next(way for way in ways if self._can_fit(*way)))
        return None

    def _can_fit(self, settings: Parallelism, strategy: str) -> bool:
        """Whether some micro-batch fits: one sample at a time or, since accumulation keeps gradients, all at once."""
        if not self.divisible or self.packed is not None:
            return self._fits(self.fitted(settings, strategy))
        return any(self._fits(self._forecast(settings, strategy, size)) for size in (1, self.per_rank))

    def fitted(self, settings: Parallelism, strategy: str) -> Try:
        """Forecast with the micro-batch of the settings; `auto` is the largest that fits, as in the job."""

        def at(size: int) -> Try:
            return self._forecast(settings, strategy, size)

        if self.packed is not None:
            return at(-(-self.per_rank // self.packed))
        if settings.micro_batch_size != "auto":
            return at(min(settings.micro_batch_size, self.per_rank))
        if self.room is None or not self.divisible or self._fits(at(self.per_rank)):
            return at(self.per_rank)
        room = self.room
        return at(fewest_that_fit(self.per_rank, lambda size: at(size).usage.total / room))

    def fits(self, found: Try) -> bool | None:
        """Whether it fits; None without a GPU."""
        return None if self.room is None else self._fits(found)

    def _fits(self, found: Try) -> bool:
        return self.room is None or found.usage.total <= self.room

    def _forecast(self, settings: Parallelism, strategy: str, size: int) -> Try:
        size = len(split(self.global_batch, self.world.size, 0, size)[0].positions)  # micro-batches are equally large
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
            lambda: registry.build(self.config),
            self.world,
            strategy,
            settings=settings,
            precision=self.precision,
            micro_batch=size,
            real=self.real,
            on_gpu=self.room is not None,
        )

    def described(self, found: Try) -> dict[str, Any]:
        """Describe a candidate: its settings and its memory."""
        usage, size = found.usage, found.micro_batch
        sizes = {name: value for name, value in usage._asdict().items() if name != "peak"}
        return {
            "strategy": found.strategy,
            "precision": self.precision,
            "activationCheckpointing": found.settings.activation_checkpointing,
            "cpuOffload": found.settings.cpu_offload,
            "microBatchSize": size,
            "microBatchTokens": self.tokens,
            "accumulation": self.packed or -(-self.per_rank // size),
            "bytes": {**sizes, "total": usage.total},
            "peak": usage.peak,
            "fits": self.fits(found),
        }


def plan(config: Config, *, ranks: int, local: int, memory: int | None, bf16: bool = True) -> str:
    """Return the forecast as JSON.

    Args:
        config: of the job.
        ranks: of the job.
        local: ranks of a node.
        memory: bytes of a rank's GPU; None: a CPU.
        bf16: whether that GPU supports it.
    """
    registry.check(config)
    with imagined_world(ranks, local) as world:
        planner = Planner(config, world, memory, bf16=bf16)
        asked = planner.as_asked()
        change = None
        if planner.fits(asked) is False and (found := planner.cheapest(asked)):
            change = {"set": _difference(asked, found), **planner.described(found)}
        document = {
            "ranks": world.size,
            "parameters": planner.parameters,
            "trainable": planner.trainable,
            "memory": memory,
            "room": planner.room,
            "how": "a real step on the CPU" if planner.real else "a step of shapes",
            "job": planner.described(asked),
            "change": change,
        }
    return json.dumps(document, indent=2) + "\n"


def fewest_that_fit(per_rank: int, share: Callable[[int], float]) -> int:
    """Return the largest micro-batch, a split of `per_rank` samples into equal parts, that fits; 1 if none does.

    Memory is piecewise linear and convex in the size, since each moment of the step grows linearly: between
    a size that fits and one that does not, the chord yields one that fits and is close to the largest.

    Args:
        per_rank: samples, too many for one micro-batch.
        share: returns the fraction of memory that a micro-batch of a size needs. It is called repeatedly
            for the same size and should cache.
    """
    if share(1) > 1.0:
        return 1
    fails, fits = 1, per_rank  # counts of micro-batches
    for halves in cycle((False, False, True)):  # chords of a line with many bends would come close slowly
        if fits - fails <= 1:
            break
        small, large = -(-per_rank // fits), -(-per_rank // fails)
        reach = small + (large - small) * (1.0 - share(small)) / (share(large) - share(small))
        count = (fails + fits) // 2 if halves else -(-per_rank // max(math.floor(reach), 1))
        count = min(max(count, fails + 1), fits - 1)
        fails, fits = (fails, count) if share(-(-per_rank // count)) <= 1.0 else (count, fits)
    return -(-per_rank // fits)


def _changes(asked: Try, world: World, *, accumulate: bool = True) -> Iterator[list[tuple[Parallelism, str]]]:
    """Return possible changes in order of their cost: accumulate, recompute, shard, offload.

    Within a group, each option recomputes more than the one before.
    """

    def with_(**changes: Any) -> Parallelism:
        size = "auto" if accumulate else asked.settings.micro_batch_size
        return msgspec.structs.replace(asked.settings, micro_batch_size=size, **changes)

    ways = ("none", "selective", "full")
    more = ways[ways.index(asked.settings.activation_checkpointing) :]
    yield [(with_(activation_checkpointing=way), asked.strategy) for way in more]
    if asked.strategy in SHARDED and not asked.settings.fsdp.reshards:
        yield [(with_(activation_checkpointing=way, fsdp=Fsdp()), asked.strategy) for way in more]
    sharded = []
    if asked.strategy not in SHARDED and 1 < world.local_size < world.size:
        sharded.append("hsdp")
    if asked.strategy != "fsdp" and world.size > 1:
        sharded.append("fsdp")
    for strategy in sharded:
        yield [(with_(activation_checkpointing=way, strategy=strategy, fsdp=Fsdp()), strategy) for way in more]
    if asked.settings.precision == "fp16":  # incompatible with offloading
        return
    widest = asked.strategy if asked.strategy == "fsdp" or world.size == 1 else "fsdp"
    widest = "fsdp" if widest == "single" else widest
    yield [(with_(activation_checkpointing="full", strategy=widest, fsdp=Fsdp(), cpu_offload=True), widest)]


def _difference(asked: Try, found: Try) -> dict[str, Any]:
    """Return the fields of `spec` to set for this configuration."""
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
