"""Profiles on demand: a request in the run folder makes the ranks record their next steps.

    $TORCHYARD_RUN_DIR/profile.json    {"id": "...", "kind": "trace" | "memory", "steps": 3, "rank": null}

`trace` writes a Chrome trace of the next `steps` steps, or of the remaining ones (chrome://tracing, ui.perfetto.dev).
`memory` then lists the live tensors; on a GPU it also records the allocator's history
(pytorch.org/memory_viz). Each rank, or the requested one, writes to `<checkpoint_dir>/profile/`. A request is served
once per rank: `profiled.<rank>` holds the last id that this rank has processed, also if another rank was requested, so
that the next requester knows when the file is free. Ranks need not agree: a profile does not change any step.
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

REQUEST = "profile.json"
FOLDER = "profile"
MAX_STEPS = 100
LARGEST = 100
MAX_ALLOCATIONS = 200_000


class ProfileRequest(Struct, frozen=True):
    """A request to record steps. `rank`: the only rank that records; None: all."""

    id: str
    kind: Literal["trace", "memory"]
    steps: Annotated[int, Meta(ge=1, le=MAX_STEPS)] = 3
    rank: int | None = None


class Profiler:
    """Looks for a request before every step and serves it. Without a run folder there are no requests.

    Leave the context when no step will follow: a finished run writes what it has recorded, a run that fails or stops
    leaves the request to the next round. A trace that is never stopped crashes the process at exit.
    """

    def __init__(self, run_dir: Path | None, checkpoint_dir: Path, world: World, reporter: Reporter) -> None:
        self._run_dir, self._folder = run_dir, checkpoint_dir / FOLDER
        self._world, self._reporter = world, reporter
        self._seen = 0
        self._request: ProfileRequest | None = None
        self._left = 0
        self._step = 0
        self._trace: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if self._request is None:
            return
        if kind is None:
            self._serve()
        elif self._trace is not None:
            with contextlib.suppress(RuntimeError):  # the error that ended the run is reported, not this one
                self._trace.stop()

    @contextlib.contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Record the `with` block if a request is active; `step` is the number of the step inside it."""
        self._before()
        yield
        self._after(step)

    def _before(self) -> None:
        if self._run_dir is None or self._request is not None:
            return
        try:
            changed = (self._run_dir / REQUEST).stat().st_mtime_ns
        except FileNotFoundError:
            return
        if changed == self._seen:
            return
        self._seen = changed
        request = self._read(self._run_dir)
        if request is not None:
            self._request, self._left = request, request.steps
            self._start(request)

    def _after(self, step: int) -> None:
        if self._request is None or self._run_dir is None:
            return
        self._left, self._step = self._left - 1, step
        if self._left == 0:
            self._serve()

    def _serve(self) -> None:
        request, step, self._request = self._request, self._step, None
        assert request is not None
        trace, self._trace = self._trace, None
        if trace is not None:  # first: a trace that keeps running slows training and crashes at exit
            trace.stop()
        name = f"{request.kind}-{step:08d}-rank-{self._world.rank}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._finish(name, trace):
                self._reporter.artifact(f"{FOLDER}/{path.name}", path)
            write_atomically(self._done, request.id)
        except OSError as error:  # a full disk must not stop training
            self._reporter.warn(f"{request.kind} profile of step {step}: {error.strerror}: {self._folder}")

    def _read(self, run_dir: Path) -> ProfileRequest | None:
        path = run_dir / REQUEST
        try:
            request = msgspec.json.decode(path.read_bytes(), type=ProfileRequest)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._reporter.warn(f"{path}: {error}; write it as docs/protocol.md describes")
            return None
        if self._done.exists() and self._done.read_text() == request.id:
            return None
        if request.rank in (None, self._world.rank):
            return request
        try:
            write_atomically(self._done, request.id)
        except OSError as error:
            self._reporter.warn(f"{request.kind} profile of rank {request.rank}: {error.strerror}: {self._done}")
        return None

    @property
    def _done(self) -> Path:
        assert self._run_dir is not None
        return self._run_dir / f"profiled.{self._world.rank}"

    def _start(self, request: ProfileRequest) -> None:
        cuda = self._world.device.type == "cuda"
        if request.kind == "memory":
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
        finally:  # recording slows training
            if cuda:
                torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001 - documented so
        return [path, snapshot] if cuda else [path]


def memory(device: torch.device) -> dict[str, Any]:
    """Describe the live tensors, the largest groups of equal ones first, and the process's peak memory."""
    groups: Counter[tuple[str, str, tuple[int, ...]]] = Counter()
    sizes: dict[tuple[str, str, tuple[int, ...]], int] = {}
    seen: set[int] = set()
    for thing in gc.get_objects():
        # Check the type: isinstance() of a proxy may warn or raise. Compilers leave fake tensors behind.
        if not issubclass(type(thing), torch.Tensor) or issubclass(type(thing), FakeTensor):
            continue
        with contextlib.suppress(RuntimeError, NotImplementedError):  # sharded and sparse tensors have no storage
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
