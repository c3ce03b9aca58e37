"""Reads the micro-batches of a rank ahead of time, in worker processes, in the order of the steps."""

import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from torchyard_trainers.core.data.sockets import use_short_paths
from torchyard_trainers.core.data.source import Source
from torchyard_trainers.core.data_wait import DataWait
from torchyard_trainers.core.exits import DataError, TrainerError

Batches = Callable[[int, int | None], Sequence[Sequence[int]]]
MOST_WORKERS = 8  # of a rank, unless a workload asks for more
AHEAD = 2  # micro-batches that each worker process reads ahead
_ALIGNED = 64  # bytes: where a tensor begins in packed memory


def share_of_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many processes read for a rank: one for each of its cores, 1 to 8.

    Args:
        quota: file of the processor time that the container may use (cgroup v2).
    """
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > 1:  # the cores of a rank; 1 is what torchrun sets where none was given
        return min(int(threads), MOST_WORKERS)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # ValueError: "max", there is no limit
        used, period = map(int, quota.read_text().split())
        cores = min(cores, -(-used // period))
    return max(1, min(cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), MOST_WORKERS))


def on_device(data: Any, device: torch.device) -> Any:
    """Return nested tensors on a device; everything else as it is."""
    if device.type == "cpu":
        return data
    return tree_map(lambda value: value.to(device, non_blocking=True) if torch.is_tensor(value) else value, data)


class Loader:
    """The data of a rank's micro-batches, step after step; the end of its context ends the worker processes.

    Workers are forked, which takes no time and works with any source; they use no GPU.

    Args:
        source: of the samples; None: `step` returns None.
        batches: returns the sample ids of each micro-batch, of a step and a size (None: all samples at once).
        steps: the first step that is not read any more.
        device: where the data is needed.
        workers: processes that read; 0: the calling thread reads.
        wait: counts the time that steps wait.
    """

    def __init__(
        self,
        source: Source | None,
        batches: Batches,
        steps: int,
        device: torch.device,
        *,
        workers: int,
        wait: DataWait,
    ) -> None:
        self._source, self._batches, self._steps = source, batches, steps
        self._device, self._workers, self._wait = device, workers, wait
        self._next: int | None = None
        self._found: Iterator[Any] = iter(())
        self._order: _Order | None = None

    def step(self, step: int, micro_batch: int | None) -> Iterator[Any] | None:
        """Return the data of each micro-batch of a step; reading begins again where steps do not follow each other.

        Args:
            step: of the optimizer.
            micro_batch: its size; the same in every call.

        Raises:
            DataError: a record cannot be used.
        """
        return self._read(self._source, step, micro_batch) if self._source is not None else None

    def _read(self, source: Source, step: int, micro_batch: int | None) -> Iterator[Any]:
        if step != self._next:
            self._order = _Order(self._batches, step, self._steps, micro_batch)
            self._found = iter(self._loader(source, self._order))
        self._next = step + 1
        assert self._order is not None
        yield self._one()  # a rank has at least one micro-batch; the order knows how many once it has been asked
        for _ in range(self._order.counts.pop(step) - 1):
            yield self._one()

    def _one(self) -> Any:
        with self._wait:
            data = next(self._found)
            if isinstance(data, _Sent):
                data = data.received()
        if isinstance(data, _Failed):
            self._next = None  # the rest of this step is not read any more
            raise data.error
        return data.unpacked(self._device) if isinstance(data, _Packed) else data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        found, self._found, self._next = self._found, iter(()), None
        # The traceback of an error may still hold the iterator. At the end of this process, `multiprocessing` would
        # wait for its workers, which ignore the signal by which it ends them.
        if isinstance(found, _MultiProcessingDataLoaderIter):
            found._shutdown_workers()  # noqa: SLF001
            for worker in found._workers:  # noqa: SLF001
                worker.kill()

    def _loader(self, source: Source, order: Iterable[list[int]]) -> DataLoader[Any]:
        use_short_paths()
        return DataLoader(
            _Samples(source),
            batch_sampler=order,  # type: ignore[arg-type]
            num_workers=self._workers,
            collate_fn=_ready,
            pin_memory=self._device.type == "cuda",
            worker_init_fn=_begin_worker,
            prefetch_factor=AHEAD if self._workers else None,
            multiprocessing_context="fork" if self._workers else None,
        )


class _Order:
    """The sample ids of all micro-batches from a step on.

    Attributes:
        counts: micro-batches of each step that has been reached.
    """

    def __init__(self, batches: Batches, first: int, last: int, micro_batch: int | None) -> None:
        self._batches, self._steps, self._micro_batch = batches, range(first, last), micro_batch
        self.counts: dict[int, int] = {}

    def __iter__(self) -> Iterator[list[int]]:
        for step in self._steps:
            found = self._batches(step, self._micro_batch)
            self.counts[step] = len(found)
            yield from (list(ids) for ids in found)


class _Samples(Dataset[Any]):
    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitems__(self, ids: list[int]) -> Any:
        try:
            return self._source.read(ids)
        except TrainerError as error:
            return _Failed(error)
        except Exception as error:  # noqa: BLE001 -- raised again where it is read, with the traceback of this process
            text = "".join(traceback.format_exception(error)).rstrip()
            return _Failed(DataError(f"samples {ids[:4]} cannot be read: {type(error).__name__}: {error}\n{text}"))


class _Failed:
    """An error of a worker process."""

    def __init__(self, error: TrainerError) -> None:
        self.error = error


@dataclass(frozen=True)
class _Part:
    """Where a tensor lies in the memory of a `_Packed`, in bytes."""

    begin: int
    end: int
    dtype: torch.dtype
    shape: torch.Size

    def of(self, memory: Tensor) -> Tensor:
        # `.data`: a change in place of one tensor is not a change of the others.
        return memory[self.begin : self.end].view(self.dtype).view(self.shape).data


class _Packed:
    """Nested tensors in one piece of memory, which goes to another process and to a GPU at once.

    Each tensor by itself would need a file descriptor, a connection that hands it over, and a transfer.
    """

    def __init__(self, data: Any, memory: Tensor) -> None:
        self._data, self._memory = data, memory

    def pin_memory(self) -> Self:
        """Return it in memory that a GPU reads while the CPU goes on; the thread of the loader calls this."""
        self._memory = self._memory.pin_memory()
        return self

    def unpacked(self, device: torch.device) -> Any:
        """Return the tensors, on a device."""
        memory = on_device(self._memory, device)
        return on_device(tree_map_only(_Part, lambda part: part.of(memory), self._data), device)


class _Sent:
    """What a worker process sends to the trainer.

    `multiprocessing` would serialize it in a thread, and leave the trainer waiting forever if that fails.
    """

    def __init__(self, data: Any) -> None:
        self._bytes = bytes(ForkingPickler.dumps(data))

    def received(self) -> Any:
        """Return it in the trainer's process."""
        return ForkingPickler.loads(self._bytes)  # of a process that this one forked

    def pin_memory(self) -> Any:
        """Return what was sent, in memory that a GPU reads while the CPU goes on; a thread of the loader calls this."""
        data = self.received()
        return data.pin_memory() if isinstance(data, _Packed) else data


def _ready(data: Any) -> Any:
    """Return what was read as the trainer takes it.

    Raises:
        OSError: a worker process has no file descriptor or shared memory left.
    """
    packed = _packed(data)
    if get_worker_info() is None:
        return packed
    try:
        return _Sent(packed)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 -- whatever the serialization of a user's objects raises
        fix = "return tensors, numbers and text from the source, nested in tuples, lists and dicts"
        cannot = f"what was read cannot be sent to the trainer: {type(error).__name__}: {error}; {fix}"
        return _Sent(_Failed(DataError(cannot)))


def _packed(data: Any) -> Any:
    """Return what was read with its tensors in one piece of memory, shared in a worker process."""
    found: list[tuple[_Part, Tensor]] = []

    def part_of(tensor: Tensor) -> Any:
        if tensor.layout is not torch.strided or tensor.requires_grad:
            return tensor
        begin = -(-found[-1][0].end // _ALIGNED) * _ALIGNED if found else 0
        size = tensor.numel() * tensor.element_size()
        found.append((_Part(begin, begin + size, tensor.dtype, tensor.shape), tensor))
        return found[-1][0]

    parts = tree_map_only(Tensor, part_of, data)
    if not found or not found[-1][0].end:
        return data
    size, shared = found[-1][0].end, get_worker_info() is not None
    memory = torch.empty(0, dtype=torch.uint8)
    memory.set_(torch.UntypedStorage._new_shared(size) if shared else torch.UntypedStorage(size))  # noqa: SLF001
    for part, tensor in found:
        part.of(memory).copy_(tensor)
    return _Packed(parts, memory)


def _begin_worker(_number: int) -> None:
    """Prepare a worker process: it survives a request to save and stop, which goes to the whole process group."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
