"""GPUs of this machine through NVML, chosen by UUID before CUDA starts. Does not import torch.

    from torchyard_trainers.core import gpus
    gpus.setup(gpus.select(2, min_free_memory=40 * 2**30))    # this process now has cuda:0 and cuda:1, and no others

NVML sees the usage of all processes; CUDA sees this process only, and querying CUDA initialises it.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

Order = Literal["index", "free-memory", "utilization"]


class Gpu(NamedTuple):
    """A snapshot of a GPU or of a MIG slice."""

    index: int  # of NVML; CUDA may number GPUs differently, so nothing here selects by it
    uuid: str
    product: str
    memory_total: int  # bytes
    memory_used: int  # bytes, of all processes
    utilization: int | None  # percent of time that a kernel ran; None: not available (MIG)
    compute_capability: tuple[int, int]

    @property
    def memory_free(self) -> int:
        """Unused bytes."""
        return self.memory_total - self.memory_used


class NoGpuError(ValueError):
    """No GPU, or too few, match the request; the message names the condition that no GPU meets."""


def available() -> list[Gpu]:
    """Return the GPUs that this process may use, in NVML's order; none without a driver.

    GPUs hidden by `CUDA_VISIBLE_DEVICES` are left out.
    """
    with _nvml() as nvml:
        if nvml is None:
            return []
        found = [gpu for index in range(nvml.nvmlDeviceGetCount()) for gpu in _devices(nvml, index)]
    return visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def info(uuid: str) -> Gpu:
    """Return a new snapshot of one GPU.

    Raises:
        NoGpuError: this process has no GPU with this UUID.
    """
    return select(1, ids=[uuid])[0]


def memory_usage() -> dict[str, tuple[int, int]]:
    """Return used and total bytes by UUID, of all processes together."""
    return {gpu.uuid: (gpu.memory_used, gpu.memory_total) for gpu in available()}


def select(
    count: int = 1,
    *,
    ids: Sequence[str] = (),
    min_total_memory: int = 0,
    min_free_memory: int = 0,
    max_utilization: int = 100,
    min_compute_capability: tuple[int, int] = (0, 0),
    product: str = "",
    order: Order = "free-memory",
    among: Sequence[Gpu] | None = None,
) -> list[Gpu]:
    """Choose GPUs.

    Args:
        count: how many.
        ids: UUIDs (a prefix is enough) or NVML indices to choose from; empty: all.
        min_total_memory: bytes.
        min_free_memory: unused bytes.
        max_utilization: percent; a GPU that does not report it passes.
        min_compute_capability: (8, 0) and later has bf16.
        product: regular expression to search in the product name, ignoring case.
        order: by most free memory, least utilization, or lowest index.
        among: GPUs to choose from; default: `available()`.

    Raises:
        NoGpuError: naming the condition that leaves too few.
    """
    left = list(available() if among is None else among)
    if len(left) < count:
        raise NoGpuError(f"{count} GPUs requested, but this process has {len(left)}; lower the number")
    conditions: tuple[tuple[str, Callable[[Gpu], bool]], ...] = (
        (f"ids {', '.join(ids)}", lambda gpu: not ids or any(_is_called(gpu, name) for name in ids)),
        (f"min_total_memory {_gib(min_total_memory)}", lambda gpu: gpu.memory_total >= min_total_memory),
        (f"product {product!r}", lambda gpu: re.search(product, gpu.product, re.IGNORECASE) is not None),
        (
            "min_compute_capability {}.{}".format(*min_compute_capability),
            lambda gpu: gpu.compute_capability >= min_compute_capability,
        ),
        (f"min_free_memory {_gib(min_free_memory)}", lambda gpu: gpu.memory_free >= min_free_memory),
        (f"max_utilization {max_utilization} %", lambda gpu: (gpu.utilization or 0) <= max_utilization),
    )
    for name, holds in conditions:
        before, left = len(left), [gpu for gpu in left if holds(gpu)]
        if len(left) < count:
            raise NoGpuError(f"{name}: {len(left)} of {before} GPUs are so, {count} are needed; ask for less")
    keys: dict[str, Callable[[Gpu], tuple[int, int]]] = {
        "index": lambda gpu: (0, gpu.index),
        "free-memory": lambda gpu: (-gpu.memory_free, gpu.index),
        "utilization": lambda gpu: (gpu.utilization or 0, gpu.index),
    }
    return sorted(left, key=keys[order])[:count]


def setup(chosen: Sequence[Gpu]) -> None:
    """Restrict this process and its children to these GPUs, `cuda:0` first.

    Raises:
        RuntimeError: CUDA is already initialised in this process.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError("CUDA has started already; call gpus.setup() before anything touches a GPU")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in chosen)


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver; None without one."""
    with _nvml() as nvml:
        return None if nvml is None else _text(nvml.nvmlSystemGetDriverVersion())


def visible(found: Sequence[Gpu], names: str | None) -> list[Gpu]:
    """Return those of the GPUs that `CUDA_VISIBLE_DEVICES` names; all of them if it is not set."""
    if names is None:
        return list(found)
    wanted = [name for part in names.split(",") if (name := part.strip())]
    return [gpu for gpu in found if any(_is_called(gpu, name) for name in wanted)]


def _is_called(gpu: Gpu, name: str) -> bool:
    return name == str(gpu.index) if name.isdecimal() else bool(name) and gpu.uuid.startswith(name)


@contextmanager
def _nvml() -> Iterator[Any]:
    """Open NVML inside a `with` block, so that the process can fork outside of it; None without a driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _devices(nvml: Any, index: int) -> Iterator[Gpu]:
    """Return a GPU, or its MIG slices if it has any: CUDA then offers only those."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:  # counted are also those that this user may not touch, and those off the bus
        return
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    if not _is_cut(nvml, handle):
        yield _gpu(nvml, handle, index, capability)
        return
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except nvml.NVMLError_NotFound:
            continue
        yield _gpu(nvml, part, index, capability)


def _is_cut(nvml: Any, handle: Any) -> bool:
    try:
        return nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError_NotSupported:
        return False


def _gpu(nvml: Any, handle: Any, index: int, capability: tuple[int, ...]) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        busy = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except nvml.NVMLError_NotSupported:
        busy = None
    major, minor = capability
    return Gpu(
        index,
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _text(nvml.nvmlDeviceGetName(handle)),
        int(memory.total),
        int(memory.used),
        busy,
        (major, minor),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
