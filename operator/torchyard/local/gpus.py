"""GPUs of this machine, handed out by UUID to one pod at a time, over all jobs that run here."""

import importlib
import os
from pathlib import Path
from typing import NamedTuple

from torchyard.api.reasons import Reason
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.values import plural
from torchyard.local.run import take_lock

Waiting = tuple[str, str]
"""Reason code and sentence."""


class Inventory(NamedTuple):
    """The GPUs of this machine that this process may use."""

    uuids: tuple[str, ...]
    trouble: str = ""  # why there are none, or fewer than the machine has


def has_driver() -> bool:
    """Return whether this machine may have GPUs, without asking the driver, which takes a while."""
    return Path("/dev/nvidiactl").exists()


def inventory() -> Inventory:
    """Return the UUIDs of the GPUs in index order; without a driver there are none."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        return Inventory((), "nvidia-ml-py is not installed, so no GPU can be found")
    except Exception as error:  # noqa: BLE001 - NVML has an exception for each: no library, no driver, no permission
        return Inventory((), f"there is no working NVIDIA driver (NVML: {error})")
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = tuple(_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles)
    except Exception as error:  # noqa: BLE001 - a driver in trouble: no GPU can be promised
        return Inventory((), f"the NVIDIA driver does not answer (NVML: {error})")
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = visible(uuids, wanted)
    hidden = len(seen) < len(uuids)
    return Inventory(seen, f"CUDA_VISIBLE_DEVICES={wanted} hides {len(uuids) - len(seen)} of them" if hidden else "")


def shortage(spec: TrainingJobSpec, present: Inventory) -> str | None:
    """Return why this machine can never hold the GPUs that the job asks for; None: it can."""
    need, offered = spec.gpus_per_node * spec.nodes, _offered(spec, present.uuids)
    if need <= len(offered):
        return None
    have = f"this machine has {len(present.uuids) or 'none'}"
    if spec.gpu is not None and spec.gpu.ids:
        have += f", {len(offered)} of them named by spec.gpu.ids"
    have += f": {present.trouble}" if present.trouble else ""
    each = plural(spec.nodes, "node") + f" x gpusPerNode {spec.gpus_per_node}"
    return f"the job needs {plural(need, 'GPU')} ({each}) and {have}"


def _offered(spec: TrainingJobSpec, present: tuple[str, ...]) -> tuple[str, ...]:
    wanted = spec.gpu.ids if spec.gpu is not None else []
    return tuple(uuid for uuid in present if not wanted or uuid in wanted)


def visible(uuids: tuple[str, ...], wanted: str | None) -> tuple[str, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES (indices or UUIDs, None: all) lets through."""
    if wanted is None:
        return uuids
    chosen = []
    for name in filter(None, (part.strip() for part in wanted.split(","))):
        if name.isdigit() and int(name) < len(uuids):
            chosen.append(uuids[int(name)])
        else:
            chosen += [uuid for uuid in uuids if uuid.startswith(name)]
    return tuple(dict.fromkeys(chosen))


def take(folder: Path, uuids: tuple[str, ...], count: int) -> dict[str, int] | None:
    """Lock `count` of the GPUs; lock descriptor by UUID, None if fewer are free.

    A lock lives as long as a process holds its descriptor, so GPUs come back however the pod ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    taken: dict[str, int] = {}
    for uuid in uuids:
        if len(taken) == count:
            break
        descriptor = take_lock(folder / f"{uuid}.lock")
        if descriptor is not None:
            taken[uuid] = descriptor
    if len(taken) < count:
        for descriptor in taken.values():
            os.close(descriptor)
        return None
    return taken


def claim(folder: Path, spec: TrainingJobSpec, present: Inventory, pods: int) -> tuple[Waiting | None, dict[str, int]]:
    """Return the reason to wait or None, and the GPUs of `pods` pods with their lock descriptors: all of them or none.

    A job that this machine can never hold takes nothing, so that it does not keep others from running.
    """
    never = shortage(spec, present)
    if never is not None:
        return (Reason.INSUFFICIENT_GPU, never), {}
    need = spec.gpus_per_node * pods
    taken = take(folder, _offered(spec, present.uuids), need)
    if taken is None:
        have = plural(len(present.uuids), "GPU")
        return (
            Reason.INSUFFICIENT_GPU,
            f"the job needs {need} free of this machine's {have}, other runs hold the rest",
        ), {}
    return None, taken


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
