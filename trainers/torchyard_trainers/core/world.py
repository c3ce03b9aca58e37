"""The processes of a run and what they agree on: rank, device, and the few collectives outside the model."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from torchyard_trainers.core.exits import ConfigError, HardwareError, StorageError, TrainerError, storage_error
from torchyard_trainers.core.group_threads import without_wakeup_preemption

T = TypeVar("T")
GPUS = "TORCHYARD_GPUS"


@dataclass(frozen=True)
class World:
    """One process of the gang. Every collective also works for a world of one without a process group."""

    rank: int
    size: int
    local_rank: int
    device: torch.device
    grouped: bool
    group: distributed.ProcessGroup | None = None  # used by the collectives; None: the default group
    local_size: int = 1  # ranks of this node; torchrun numbers them one after the other

    def with_own_group(self) -> "World":
        """Return this world with a separate gloo process group, for a background thread. Collective.

        Its collectives never mix with those of training, and a slow volume does not trip NCCL's watchdog.
        """
        if not self.grouped:
            return self
        with without_wakeup_preemption():
            return replace(self, group=distributed.new_group(backend="gloo"))

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place; every rank gets the same bits."""
        if self.grouped:
            distributed.all_reduce(values, group=self.group)
        return values

    def merge(self, length: int, positions: list[int], values: Tensor) -> Tensor:
        """Put each rank's values at their global positions: float64 [length] on the CPU, exact, the same everywhere."""
        merged = torch.zeros(length, dtype=torch.float64)
        merged[torch.tensor(positions, dtype=torch.int64)] = values.detach().double().cpu()
        return self.total(merged)

    def scatter(self, target: Tensor, whole: Tensor | None) -> None:
        """Fill a tensor, or each rank's part of a sharded one, from the whole tensor that rank 0 gives."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        if whole is None:
            whole = torch.empty(target.shape, dtype=target.dtype)
        whole = whole.to(target.device)
        if isinstance(target, DTensor):
            target.to_local().copy_(distribute_tensor(whole, target.device_mesh, target.placements).to_local())
            return
        if self.grouped:
            distributed.broadcast(whole, src=0)
        target.copy_(whole)

    def shares(self, folder: Path) -> bool:
        """Whether all ranks see what rank 0 writes to a folder. Collective."""

        def leave_a_mark() -> str:
            name = f".shared-{uuid.uuid4().hex}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
            return name

        mark = folder / self.from_leader(leave_a_mark)
        seen = all(self.gather(mark.exists()))
        if self.is_main:
            mark.unlink(missing_ok=True)
        return seen

    def gather(self, value: T) -> list[T]:
        """Return the picklable values of all ranks, in rank order. Collective."""
        if not self.grouped:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self.group)
        return values

    def from_leader(self, decide: Callable[[], T]) -> T:
        """Run `decide` on rank 0 and return its result on every rank; its error is raised on every rank."""
        return self.agree(decide, on_leader_only=True)[0]

    def agree(self, act: Callable[[], T], *, on_leader_only: bool = False) -> list[T]:
        """Run `act` on every rank (or rank 0) and return all results; an error on any rank is raised on all."""
        outcome: tuple[T | None, Exception | None] = (None, None)
        if self.is_main or not on_leader_only:
            try:
                outcome = (act(), None)
            except (OSError, TrainerError) as error:
                outcome = (None, error)
        outcomes = self.gather(outcome)
        for _, error in outcomes:
            if error is not None:
                raise error
        return [result for result, _ in outcomes]  # type: ignore[misc]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.gather(None)


@contextmanager
def join(
    device: str, *, needs_group: bool, deterministic: bool = True, matmul_precision: str = "highest"
) -> Iterator[World]:
    """Join the gang described by torchrun's environment (without it: a world of one); leave it at the end.

    Args:
        device: `auto`, `cuda` or `cpu`; `cuda` never falls back.
        needs_group: create a process group even for a world of one (every strategy but single).
        deterministic: see `make_deterministic`; without it, PyTorch may choose faster algorithms.
        matmul_precision: `highest`, or `high`: products of fp32 in TensorFloat-32, on GPUs that have it.
    """
    rank, size, local_rank, local_size = (int(os.environ.get(name, default)) for name, default in _TORCHRUN)
    chosen = pick_device(device, local_rank, int(os.environ.get(GPUS) or 0))
    make_deterministic(chosen, on=deterministic)
    torch.set_float32_matmul_precision(matmul_precision)
    grouped = size > 1 or needs_group
    if grouped:
        with without_wakeup_preemption():
            _init_process_group(chosen, size)
    yield World(rank, size, local_rank, chosen, grouped, local_size=local_size)
    # Only after success: a failing worker must not wait here for peers that wait for it.
    if grouped:
        distributed.barrier()
        distributed.destroy_process_group()


_TORCHRUN = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))


def pick_device(device: str, local_rank: int, requested_gpus: int = 0) -> torch.device:
    """Return this process's device; requested GPUs that cannot be used are an error, never a fallback to the CPU.

    Args:
        device: `auto`, `cuda` or `cpu`.
        local_rank: of this process.
        requested_gpus: that the job asked for in each pod; with some, `auto` means `cuda`.

    Raises:
        HardwareError: the job asked for GPUs and this process cannot use its own.
        ConfigError: the job asks for no GPU, or for fewer than processes, and `device` is not `cpu`.
    """
    if device == "cpu" or (device == "auto" and not requested_gpus and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if local_rank < count:
        chosen = torch.device("cuda", local_rank)
        torch.cuda.set_device(chosen)
        return chosen
    if count < requested_gpus:
        raise HardwareError(f"the job asks for {requested_gpus} GPU(s) in each pod, but {_missing(local_rank, count)}")
    if torch.version.cuda is not None and Path("/dev/nvidiactl").exists() and not _hidden():
        raise HardwareError(f"device: cuda: {_missing(local_rank, count)}")
    raise ConfigError(f"device: cuda, but {_missing(local_rank, count)}; set gpusPerNode to 1 or more, or device: cpu")


def _missing(local_rank: int, count: int) -> str:
    """Return what keeps process `local_rank` from a GPU, of which it sees `count`, and what to do."""
    if count:
        return f"process {local_rank} of this node has none of its own ({count} seen): lower procsPerNode"
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA: use an image with a CUDA build of torch"
    if _hidden():
        visible = os.environ["CUDA_VISIBLE_DEVICES"]
        return f"CUDA_VISIBLE_DEVICES is {visible!r}, which hides every GPU: remove it from spec.env or from the image"
    if not Path("/dev/nvidiactl").exists():
        return "there is no NVIDIA driver: check the node, the container runtime and the device plugin"
    return "the NVIDIA driver is loaded and CUDA does not start: check the GPU and the version of the driver"


def _hidden() -> bool:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() in ("", "-1")


def device_name(device: torch.device) -> str:
    """Return the device as people know it: `cuda:0 NVIDIA H100 80GB HBM3`, `cpu`."""
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def device_reason(setting: str, device: torch.device) -> str:
    """Return why a process trains where it does: the setting, and with `auto` what it found.

    Args:
        setting: `auto`, `cuda` or `cpu`.
        device: that `pick_device` returned for it.
    """
    if setting != "auto":
        return f"device: {setting}"
    if device.type == "cuda":
        return f"device: auto, {torch.cuda.device_count()} GPU(s) visible"
    return f"device: auto, {_missing(0, 0).split(':')[0]}"


def make_deterministic(device: torch.device, *, on: bool = True) -> None:
    """Make the same world compute the same bits; do not fill new memory, which costs time and changes no result.

    `on`: else algorithms whose order of summation varies are allowed; a CPU still has as many threads.
    """
    if device.type == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
    torch.utils.deterministic.fill_uninitialized_memory = False


def _init_process_group(device: torch.device, size: int) -> None:
    backend, bound = ("cpu:gloo,cuda:nccl", device) if device.type == "cuda" else ("gloo", None)
    if "MASTER_ADDR" in os.environ:
        distributed.init_process_group(backend, device_id=bound)
    elif size == 1:
        distributed.init_process_group(backend, device_id=bound, store=distributed.HashStore(), rank=0, world_size=1)
    else:
        raise ConfigError(f"WORLD_SIZE is {size} but MASTER_ADDR is not set; start with torchrun")


def retried(act: Callable[[], T], *, attempts: int, pause: Callable[[int], None], what: str) -> T:
    """Retry `act` on storage errors; `act` fails on all ranks or on none, so all retry together.

    Raises:
        StorageError: it still fails after the last attempt.
    """
    for attempt in range(1, attempts + 1):
        try:
            return act()
        except Exception as error:
            refused = storage_error(error)
            if refused is None:
                raise
            if attempt == attempts:
                raise StorageError(f"{what}: {refused}; free space or repair the volume") from error
            pause(attempt)
    raise AssertionError("attempts must be at least 1")
