"""Measure how long a process waits for the other ranks: in collectives, and at the end of DDP's backward passes.

- `Work.wait` is what every collective of `torch.distributed` on a CPU blocks in, those of FSDP among them.
- DDP reduces gradients in C++. Its logger has the time from the last gradient of this rank to the last reduced one.

On a GPU a collective blocks a stream, not the process. Only DDP's logger measures there, with CUDA events; waits of
sharded models on GPUs stay unknown.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from types import ModuleType
from typing import Any, List, Optional

# Steps between two that DDP's logger measures; reading a measurement on a GPU waits for its kernels.
DDP_SAMPLES = {"cpu": 1, "cuda": 10}
_COLLECTIVES = "torch.distributed.distributed_c10d"
_DDP = "torch.nn.parallel.distributed"


class Waits:
    """Seconds that this process has waited for other ranks, since they were last taken."""

    def __init__(self) -> None:
        self.replicas: List[Any] = []  # weak references to DDP modules
        self._pid = os.getpid()
        self._blocked = 0.0  # in collectives
        self._measured = False

    def block(self, seconds: float) -> None:
        """Count time in a collective."""
        self._measured = True
        self._blocked += seconds

    def take_blocked(self) -> float:
        """Return the seconds in collectives since the last call."""
        blocked, self._blocked = self._blocked, 0.0
        return blocked

    def of_step(self, blocked: float) -> Optional[float]:
        """Return the seconds that the step before this one waited; None: they cannot be measured.

        Args:
            blocked: what `take_blocked` returned at its end. DDP measures a step when the next one begins.
        """
        replicas = [module for module in (reference() for reference in self.replicas) if module is not None]
        backward = 0.0
        for module in replicas:
            measured = _after_last_gradient(module)
            if measured is None:
                return None
            backward += measured
        if _uses_gpus():
            return backward if replicas else None
        return blocked + backward if self._measured or replicas else None


_waits = Waits()


def waits() -> Waits:
    """Return the counter of this process; a fork starts over."""
    global _waits  # noqa: PLW0603 - one a process
    if _waits._pid != os.getpid():  # noqa: SLF001
        _waits = Waits()
    return _waits


def watch_collectives(module: ModuleType) -> None:
    """Measure every wait for a collective."""
    work: Any = getattr(module, "Work", None)
    wait = getattr(work, "wait", None)
    if wait is None or hasattr(wait, "torchyard"):
        return
    clock = time.perf_counter

    @functools.wraps(wait)
    def measured(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = clock()
        try:
            return wait(self, *args, **kwargs)
        finally:
            if threading.current_thread() is threading.main_thread():  # not where checkpoints are written
                waits().block(clock() - began)

    measured.torchyard = True  # type: ignore[attr-defined]
    work.wait = measured


def watch_replicas(module: ModuleType) -> None:
    """Have each DDP module measure its backward passes."""
    kind: Any = getattr(module, "DistributedDataParallel", None)
    create = getattr(kind, "__init__", None)
    if create is None or hasattr(create, "torchyard"):
        return

    @functools.wraps(create)
    def created(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        try:
            place = next(each.device.type for each in self.module.parameters() if each.requires_grad)
            self._set_ddp_runtime_logging_sample_rate(DDP_SAMPLES.get(place, DDP_SAMPLES["cuda"]))
            waits().replicas.append(weakref.ref(self))
        except Exception:  # noqa: BLE001 - another version of torch: its waits stay unknown, the program goes on
            return

    created.torchyard = True  # type: ignore[attr-defined]
    kind.__init__ = created


def _after_last_gradient(module: Any) -> Optional[float]:
    """Return the seconds that DDP's newest measured backward pass waited for reduced gradients; None: none yet."""
    try:
        figures = module.logger._get_ddp_logging_data().ints_map  # noqa: SLF001
        communication, overlap = (
            figures[name] for name in ("backward_comm_time", "backward_compute_comm_overlap_time")
        )
    except Exception:  # noqa: BLE001 - no measurement yet, or another version of torch
        return None
    return float(max(0, communication - overlap)) / 1e9


def _uses_gpus() -> bool:
    cuda: Any = sys.modules.get("torch.cuda")
    try:
        return bool(cuda is not None and cuda.is_initialized())
    except Exception:  # noqa: BLE001
        return False
