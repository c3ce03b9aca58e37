"""Profiles on demand: somebody writes a wish into the run folder, and the next steps are recorded.

    $TORCHYARD_RUN_DIR/profile.json    {"id": "...", "kind": "trace" | "memory", "steps": 3, "rank": null}

`trace` writes a Chrome trace of the next `steps` steps, or of those that are left (chrome://tracing, ui.perfetto.dev).
`memory` says after them which tensors there are; on a GPU also what its allocator did in them
(pytorch.org/memory_viz). Each rank, or the one named, writes into `<checkpoint_dir>/profile/`. A wish is granted once a
rank: `profiled.<rank>` holds the id that this rank is done with, also where another was named, so that who wishes next
can tell whether the file is free. Ranks need not agree on anything: a profile changes no step.
"""

import contextlib
import gc
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import torch
from msgspec import Meta, Struct
from torch._subclasses.fake_tensor import FakeTensor

from torchyard_trainers.core.checkpoints.commits import write_atomically
from torchyard_trainers.core.metrics.meter import peak_memory
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.world import World

WISH = "profile.json"
FOLDER = "profile"
MAX_STEPS = 100
LARGEST = 100
MAX_ALLOCATIONS = 200_000


class Wish(Struct, frozen=True):
    """What to record. `rank`: the only rank that is asked."""

    id: str
    kind: Literal["trace", "memory"]
    steps: Annotated[int, Meta(ge=1, le=MAX_STEPS)] = 3
    rank: int | None = None


class Profiler:
    """Looks for a wish before every step and grants it. Without a run folder nobody can have one.

    Leave it when no step will follow: a run that is done writes what it has recorded, one that fails or stops leaves
    the wish to the next round. A trace that nobody stops crashes the process at its end.
    """

    def __init__(self, run_dir: Path | None, checkpoint_dir: Path, world: World, reporter: Reporter) -> None:
        self._run_dir, self._folder = run_dir, checkpoint_dir / FOLDER
        self._world, self._reporter = world, reporter
        self._seen = 0
        self._wish: Wish | None = None
        self._left = 0
        self._step = 0
        self._trace: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if self._wish is None:
            return
        if kind is None:
            self._grant()
        elif self._trace is not None:
            with contextlib.suppress(RuntimeError):  # what ends the run is told, not this
                self._trace.stop()

    @contextlib.contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Record what is done meanwhile, if somebody wishes so; `step` is the number it has when it is done."""
        self._before()
        yield
        self._after(step)

    def _before(self) -> None:
        if self._run_dir is None or self._wish is not None:
            return
        try:
            changed = (self._run_dir / WISH).stat().st_mtime_ns
        except FileNotFoundError:
            return
        if changed == self._seen:
            return
        self._seen = changed
        wish = self._read(self._run_dir)
        if wish is not None:
            self._wish, self._left = wish, wish.steps
            self._start(wish)

    def _after(self, step: int) -> None:
        if self._wish is None or self._run_dir is None:
            return
        self._left, self._step = self._left - 1, step
        if self._left == 0:
            self._grant()

    def _grant(self) -> None:
        wish, step, self._wish = self._wish, self._step, None
        assert wish is not None
        trace, self._trace = self._trace, None
        if trace is not None:  # first of all: one that runs on slows training and crashes at its end
            trace.stop()
        name = f"{wish.kind}-{step:08d}-rank-{self._world.rank}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._finish(name, trace):
                self._reporter.artifact(f"{FOLDER}/{path.name}", path)
            write_atomically(self._done, wish.id)
        except OSError as error:  # a profile that finds no room is no reason to stop training
            self._reporter.warn(f"{wish.kind} profile of step {step}: {error.strerror}: {self._folder}")

    def _read(self, run_dir: Path) -> Wish | None:
        path = run_dir / WISH
        try:
            wish = msgspec.json.decode(path.read_bytes(), type=Wish)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._reporter.warn(f"{path}: {error}; write what docs/protocol.md says")
            return None
        if self._done.exists() and self._done.read_text() == wish.id:
            return None
        if wish.rank in (None, self._world.rank):
            return wish
        try:
            write_atomically(self._done, wish.id)
        except OSError as error:
            self._reporter.warn(f"{wish.kind} profile of rank {wish.rank}: {error.strerror}: {self._done}")
        return None

    @property
    def _done(self) -> Path:
        assert self._run_dir is not None
        return self._run_dir / f"profiled.{self._world.rank}"

    def _start(self, wish: Wish) -> None:
        cuda = self._world.device.type == "cuda"
        if wish.kind == "memory":
            if cuda:
                torch.cuda.memory._record_memory_history(max_entries=MAX_ALLOCATIONS)  # noqa: SLF001 - documented so
            return
        kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if cuda else [])]
        self._trace = torch.profiler.profile(activities=kinds, record_shapes=True)
        self._trace.start()

    def _finish(self, name: str, trace: Any) -> list[Path]:
        if trace is not None:
            path = self._folder / f"{name}.json.gz"
            scratch = self._folder / f".{name}.tmp.json.gz"
            trace.export_chrome_trace(str(scratch))
            scratch.replace(path)
            return [path]
        path, snapshot = self._folder / f"{name}.json", self._folder / f"{name}.pickle"
        cuda = self._world.device.type == "cuda"
        try:
            write_atomically(path, json.dumps(memory(self._world.device), indent=1))
            if cuda:
                torch.cuda.memory._dump_snapshot(str(snapshot))  # noqa: SLF001 - documented so
        finally:  # one that runs on slows training, as a trace does
            if cuda:
                torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001 - documented so
        return [path, snapshot] if cuda else [path]


def memory(device: torch.device) -> dict[str, Any]:
    """Say which tensors there are, the largest groups of equal ones first, and what the process has at most had."""
    groups: Counter[tuple[str, str, tuple[int, ...]]] = Counter()
    sizes: dict[tuple[str, str, tuple[int, ...]], int] = {}
    seen: set[int] = set()
    for thing in gc.get_objects():
        # By its type: a proxy pretends to be what it stands for, and warns or raises when asked. Compilers leave fakes.
        if not issubclass(type(thing), torch.Tensor) or issubclass(type(thing), FakeTensor):
            continue
        with contextlib.suppress(RuntimeError, NotImplementedError):  # sharded and sparse ones have no storage
            if thing.untyped_storage().data_ptr() not in seen:
                seen.add(thing.untyped_storage().data_ptr())
                key = (str(thing.device), str(thing.dtype).removeprefix("torch."), tuple(thing.shape))
                groups[key] += 1
                sizes[key] = sizes.get(key, 0) + thing.untyped_storage().nbytes()
    largest = sorted(sizes, key=lambda key: -sizes[key])[:LARGEST]
    found: dict[str, Any] = {
        "time": time.time(),
        "peakBytes": peak_memory(device),
        "tensorBytes": sum(sizes.values()),
        "tensors": [
            {"device": key[0], "dtype": key[1], "shape": list(key[2]), "count": groups[key], "bytes": sizes[key]}
            for key in largest
        ],
    }
    if device.type == "cuda":
        found["allocator"] = torch.cuda.memory_stats(device)
    return found
