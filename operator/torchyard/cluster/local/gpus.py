"""GPUs of this machine, handed out by UUID to one pod at a time, over all jobs that run here."""

import importlib
import os
from pathlib import Path

from torchyard.api.spec import TrainingJobSpec
from torchyard.cluster.local.folder import take_lock

Waiting = tuple[str, str]
"""Reason code and sentence."""


def inventory() -> tuple[str, ...]:
    """UUIDs of the GPUs that this process may use, in index order; none without a driver."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - no module, no library, no driver: NVML has an exception for each
        return ()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except Exception:  # noqa: BLE001 - a driver in trouble: no GPU can be promised
        return ()
    return visible(tuple(uuids), os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(uuids: tuple[str, ...], wanted: str | None) -> tuple[str, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES (indices or UUIDs, None: all) lets through."""
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


def claim(
    folder: Path, spec: TrainingJobSpec, present: tuple[str, ...], pods: int
) -> tuple[Waiting | None, dict[str, int]]:
    """Reason to wait or None, and the GPUs of `pods` pods with their lock descriptors: all of them or none.

    A job that this machine can never hold takes nothing, so that it does not keep others from running.
    """
    each, nodes, have = spec.gpus_per_node, spec.nodes, len(present)
    wanted = spec.gpu.ids if spec.gpu is not None else []
    offered = tuple(uuid for uuid in present if not wanted or uuid in wanted)
    if each * nodes > len(offered):
        named = f", {len(offered)} of them named by `spec.gpu.ids`" if wanted else ""
        need = f"need {each * nodes} GPUs ({nodes} nodes x {each}), this machine has {have}{named}"
        return ("InsufficientGPU", f"{need}: lower `spec.gpusPerNode` or `spec.nodes`"), {}
    taken = take(folder, offered, each * pods)
    if taken is None:
        return ("InsufficientGPU", f"need {each * pods} free GPUs, others of this machine's {have} are in use"), {}
    return None, taken


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
