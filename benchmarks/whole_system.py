"""Processor time of all processes of a cluster on this machine, from /proc."""

import asyncio
import contextlib
import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
SYSTEM = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kueue", "jobset", "kwok")
QUIET_CORES = 0.4


def processor(operator: int | None) -> dict[str, float]:
    """CPU seconds so far by name: the cluster's own processes, this one as `client`, and the operator's pid."""
    found = {"client": _cpu(os.getpid())}
    if operator is not None:
        found["operator"] = _cpu(operator)
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            name = (entry / "exe").readlink().name if entry.name.isdigit() else ""
            if name in SYSTEM:
                found[name] = found.get(name, 0.0) + _cpu(int(entry.name))
    return found


async def quiet(operator: int | None) -> None:
    """Wait until all of these processes are idle."""
    used = sum(processor(operator).values())
    while True:
        await asyncio.sleep(5)
        before, used = used, sum(processor(operator).values())
        if used - before < 5 * QUIET_CORES:
            return


def memory(pid: int) -> float:
    """Resident MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
