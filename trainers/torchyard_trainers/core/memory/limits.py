"""The memory limit of a rank and its peak usage, measured in the same way.

On a GPU: what its allocator may reserve, and what tensors used of it. On a CPU: this process's share of what its cgroup
(a pod's `resources.memory`) or else the machine has left, and the resident memory that the kernel counted.
"""

import resource
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch

# Fragmentation, cuBLAS workspaces and NCCL buffers do not belong to any tensor.
IN_TENSORS = 0.92
_CGROUP_LIMITS = ("memory.max", "memory.limit_in_bytes")
_CGROUP_USES = ("memory.current", "memory.usage_in_bytes")


class Memory(Protocol):
    """The memory limit and usage of one rank, in bytes."""

    @property
    def limit(self) -> int:
        """Bytes that this rank may use, including those it already uses."""

    def start(self) -> None:
        """Reset the peak."""

    def peak(self) -> int:
        """Return the most bytes used at once since `start`."""


def memory_of(device: torch.device, local_size: int, fraction: float = 1.0) -> Memory:
    """Return the memory of a rank on `device`, one of `local_size` on its node; it may use `fraction` of its share."""
    return GpuMemory(device, fraction) if device.type == "cuda" else HostMemory(local_size, fraction)


def hold_to(device: torch.device, fraction: float) -> None:
    """Make allocations beyond a fraction of this process's GPU fail; on a CPU the fraction only guides the planner."""
    if device.type == "cuda" and fraction < 1:
        torch.cuda.set_per_process_memory_fraction(fraction, device)


class GpuMemory:
    """Memory of a CUDA device that no other process of the job uses."""

    def __init__(self, device: torch.device, fraction: float = 1.0) -> None:
        """Use a fraction of the device and limit the allocator to it."""
        self._device, self._fraction = device, fraction

    @property
    def limit(self) -> int:
        """See `Memory`."""
        free, total = torch.cuda.mem_get_info(self._device)
        return int(IN_TENSORS * min(free + torch.cuda.memory_reserved(self._device), self._fraction * total))

    def start(self) -> None:
        """See `Memory`."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """See `Memory`."""
        return torch.cuda.max_memory_allocated(self._device)


class HostMemory:
    """Memory of this process on the CPU."""

    def __init__(self, local_size: int, fraction: float = 1.0) -> None:
        """Divide the remaining memory among the ranks of the node."""
        self._local_size, self._fraction = local_size, fraction

    @property
    def limit(self) -> int:
        """See `Memory`."""
        return int(self._fraction * (_of_this_process("VmRSS") + memory_left() / self._local_size))

    def start(self) -> None:
        """See `Memory`."""
        # proc(5): the peak becomes what is resident now. Refused, earlier work counts as well: too careful, never too
        # bold.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak(self) -> int:
        """See `Memory`."""
        return _of_this_process("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_left(root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> int:
    """Return the bytes that this process can still allocate: the least of its cgroups' and the machine's."""
    left = [
        int(line.split()[1]) * 1024
        for line in (proc / "meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    ]
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            home = root / controllers
            # In a container with its own cgroup namespace the path does not exist, and the root is the container's.
            folder = home / path.lstrip("/")
            for place in (folder, *folder.parents):
                left += _left_in(place)
                if place == home:
                    break
    return max(0, min(left))


def _left_in(cgroup: Path) -> list[int]:
    """Return limit minus use of one cgroup, if it has a limit. Page cache does not count: it can be reclaimed."""
    for limit_name, use_name in zip(_CGROUP_LIMITS, _CGROUP_USES, strict=True):
        try:
            limit, used = (cgroup / limit_name).read_text(), (cgroup / use_name).read_text()
            statistics = (cgroup / "memory.stat").read_text()
        except OSError:
            continue
        if limit.strip() != "max":
            files = [
                int(line.split()[1])
                for line in statistics.splitlines()
                if line.startswith(("inactive_file ", "total_inactive_file "))
            ]
            return [int(limit) - int(used) + max(files, default=0)]
    return []


def _of_this_process(name: str) -> int:
    """Read a size of this process, in bytes; 0 if the kernel does not report it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
