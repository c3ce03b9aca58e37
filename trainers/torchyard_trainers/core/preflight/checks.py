"""The checks, in order of what the next one stands on. Each runs on every rank; those of storage and network together.

A check never raises for what it looks for: what is wrong is a finding with a fix.
"""

import errno
import os
import platform
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, distributed

from torchyard_trainers.core.gpus import driver_version
from torchyard_trainers.core.world import World

SHM = Path("/dev/shm")  # noqa: S108 - where processes of a node share memory
SHM_BYTES = 64 * 2**20
STORAGE_BYTES = 32 * 2**20
MESSAGE_BYTES = 16 * 2**20
ROUNDS = 5
# A GPU much slower than its peers holds all of them up.
SLOW_SHARE = 0.7


class Finding(NamedTuple):
    """What a check saw. `fault`: what is wrong, "" if nothing is; `hardware`: another node may do."""

    what: str
    figures: dict[str, float] = {}  # noqa: RUF012 - never written to
    fault: str = ""
    fix: str = ""
    hardware: bool = False


Check = Callable[[World, Path], list[Finding]]


def versions(world: World, _root: Path) -> list[Finding]:
    """Python, torch, CUDA and driver are the same on all ranks: different kernels add differently."""
    mine = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "driver": driver_version() or "none",
    }
    everyone = world.gather(mine)
    what = ", ".join(f"{name} {version}" for name, version in mine.items())
    odd = [name for name in mine if len({each[name] for each in everyone}) > 1]
    if not odd:
        return [Finding(what)]
    seen = "; ".join(f"{name} {', '.join(sorted({each[name] for each in everyone}))}" for name in odd)
    return [Finding(what, fault=f"ranks run different versions ({seen})", fix="use one image and one driver version")]


def device(world: World, _root: Path) -> list[Finding]:
    """The device computes: products of matrices are what they must be, and as fast as on the other ranks."""
    size = 4096 if world.device.type == "cuda" else 512
    try:
        wrong, rate = _compute(world.device, size)
    except RuntimeError as error:
        wrong, rate = f"computing failed ({str(error).strip().splitlines()[0]})", 0.0
    rates = world.gather(rate)
    typical = sorted(rates)[len(rates) // 2]
    name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "CPU"
    found = Finding(f"{name} computes {rate / 1e12:.3g} TFLOP/s in fp32", {"teraflopsPerSecond": rate / 1e12})
    if wrong:
        return [found._replace(fault=f"{name}: {wrong}", fix="drain the node and test its GPU", hardware=True)]
    if world.device.type == "cuda" and rate < SLOW_SHARE * typical:
        slow = f"{name} computes {rate / 1e12:.3g} TFLOP/s, the others {typical / 1e12:.3g}"
        return [found._replace(fault=slow, fix="look for throttling and other processes on it", hardware=True)]
    return [found]


def _compute(place: torch.device, size: int) -> tuple[str, float]:
    """Multiply matrices of small whole numbers, whose product has one exact answer in fp32; give fault and FLOP/s."""
    steps = torch.arange(size, device=place, dtype=torch.float32)
    left, right = (steps[:, None] + steps[None, :]) % 7, (steps[:, None] + 2 * steps[None, :]) % 5
    product = left @ right
    _wait(place)
    began = time.perf_counter()
    for _ in range(ROUNDS):
        product = left @ right
    _wait(place)
    rate = ROUNDS * 2 * size**3 / (time.perf_counter() - began)
    # Column sums by another way: (1' A) B, vectors only. Whole numbers below 2^53 are exact in float64.
    expected = (left.double().sum(0, keepdim=True) @ right.double())[0]
    return ("" if torch.equal(product.double().sum(0), expected) else "products of matrices are wrong"), rate


def shared_memory(world: World, _root: Path) -> list[Finding]:
    """Processes of a node exchange data through /dev/shm; a container has 64 MiB unless it asks for more."""
    if not SHM.is_dir():
        return [Finding(f"no {SHM}", fault=f"there is no {SHM}", fix="set resources.shm")]
    free = shutil.disk_usage(SHM).free
    found = Finding(f"{SHM} has {free / 2**20:.0f} MiB free", {"shmFreeBytes": float(free)})
    if free < SHM_BYTES and world.size > 1:
        return [found._replace(fault=f"{found.what}, less than {SHM_BYTES / 2**20:.0f}", fix="raise resources.shm")]
    return [found]


def network(world: World, _root: Path) -> list[Finding]:
    """All ranks together add up a message; bandwidth as nccl-tests count it: 2 (n - 1) / n of the bytes a second."""
    if not world.grouped or world.size == 1:
        return []
    message = torch.full((MESSAGE_BYTES // 4,), float(world.rank + 1), device=world.device)
    expected = world.size * (world.size + 1) / 2
    rate, fault = _all_reduce(world, message, expected)
    kind = "nccl" if world.device.type == "cuda" else "gloo"
    found = Finding(f"all-reduce over {kind}: {rate / 1e9:.3g} GB/s", {"allReduceBytesPerSecond": rate})
    if fault:
        return [found._replace(fault=fault, fix="test GPUs and network between these nodes", hardware=True)]
    return [found]


def _all_reduce(world: World, message: Tensor, expected: float) -> tuple[float, str]:
    summed = message.clone()
    distributed.all_reduce(summed)  # connections are made by the first one
    fault = "" if bool((summed == expected).all()) else f"a sum over {world.size} ranks is not {expected:g}"
    _wait(world.device)
    began = time.perf_counter()
    for _ in range(ROUNDS):
        distributed.all_reduce(message.clone())
    _wait(world.device)
    each = (time.perf_counter() - began) / ROUNDS
    return 2 * (world.size - 1) / world.size * MESSAGE_BYTES / each, fault


# What a person can repair in the volume or its claim; other errors are the device's.
_MENDED = {
    errno.EACCES: "let the pod's user write there (fsGroup), or choose another claim in checkpoint.volume",
    errno.EPERM: "let the pod's user write there (fsGroup), or choose another claim in checkpoint.volume",
    errno.EROFS: "mount the volume for writing",
    errno.ENOSPC: "free space, or use a larger claim in checkpoint.volume",
    errno.EDQUOT: "free space, or raise the quota",
    errno.ENOTDIR: "choose a folder in checkpoint.volume",
    errno.EEXIST: "choose a folder in checkpoint.volume",
}


def storage(world: World, root: Path) -> list[Finding]:
    """Every rank writes a file into the checkpoint folder, makes it durable, and reads back the same bytes."""
    path = root / f".preflight-{world.rank}"
    data = os.urandom(2**20) * (STORAGE_BYTES // 2**20)
    try:
        root.mkdir(parents=True, exist_ok=True)
        writing, reading, same = _write_and_read(path, data)
    except OSError as error:
        fix = _MENDED.get(error.errno or 0)
        reason = f"{root} cannot be written ({error.strerror})"
        return [Finding(f"storage in {root}", fault=reason, fix=fix or "test the volume", hardware=fix is None)]
    finally:
        _forget(path)
    found = Finding(
        f"{root} writes {writing / 1e6:.0f} MB/s and reads {reading / 1e6:.0f} MB/s",
        {"storageWriteBytesPerSecond": writing, "storageReadBytesPerSecond": reading},
    )
    if not same:
        return [found._replace(fault=f"{root} gives back other bytes", fix="test the volume", hardware=True)]
    return [found]


def _write_and_read(path: Path, data: bytes) -> tuple[float, float, bool]:
    """Return bytes a second of writing and reading, and whether what was read is what was written."""
    began = time.perf_counter()
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        # What was read back from memory would prove nothing of the volume.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    written = time.perf_counter()
    found = path.read_bytes()
    read = time.perf_counter()
    return len(data) / (written - began), len(data) / (read - written), found == data


def _forget(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # it could not be made either, which is a finding already


def _wait(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)


CHECKS: tuple[Check, ...] = (versions, device, shared_memory, network, storage)
