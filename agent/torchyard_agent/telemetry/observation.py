"""What the hooks observe of training in this process: its device, and whether it belongs to a process group."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Dict, Optional

# Programs that use one of these may communicate without a process group of torch.
_OTHER_TRANSPORTS = ("bagua", "byteps", "horovod", "jax", "mpi4py", "ray", "torch_xla", "torchft")
_MAX_DEVICE = 64


class Observation:
    """Facts about the steps of this process; a fork starts over."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.first_step: Optional[float] = None
        self.device: Optional[str] = None
        self.grouped = _int(os.environ.get("WORLD_SIZE")) < 2

    def step(self, optimizer: Any) -> None:
        """Note a step of `optimizer`; called by the training thread, so it has to be cheap."""
        if self.first_step is None:
            self.first_step = time.time()
            self.device = _device_of(optimizer)
        if not self.grouped:
            self.grouped = communicates()

    def facts(self, now: float) -> Dict[str, Any]:
        """Return the fields of a report; unknown ones are left out."""
        found: Dict[str, Any] = {}
        if self.device in (None, "cpu") and _cuda_is_started():
            self.device = "cuda"  # weights that an optimizer keeps on the CPU do not show where the model runs
        if self.device is not None:
            found["device"] = self.device
        if self.first_step is not None and not self.grouped:
            found["aloneSeconds"] = round(max(0.0, now - self.first_step), 1)
        return found


_observed: Optional[Observation] = None


def observed() -> Observation:
    """Return the observation of this process."""
    global _observed  # noqa: PLW0603 - one a process
    if _observed is None or _observed.pid != os.getpid():
        _observed = Observation()
    return _observed


def communicates() -> bool:
    """Return whether this process belongs to a process group, or uses another library that may connect it."""
    if any(name in sys.modules for name in _OTHER_TRANSPORTS):
        return True
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available():
            return False
        rpc: Any = sys.modules.get("torch.distributed.rpc.api")
        return bool(distributed.is_initialized() or (rpc is not None and rpc._is_current_rpc_agent_set()))  # noqa: SLF001
    except Exception:  # noqa: BLE001 - a torch that has none of this: nothing can be said, so nothing is
        return True


def _device_of(optimizer: Any) -> Optional[str]:
    try:
        device = next(each.device for group in optimizer.param_groups for each in group["params"])
        name = sys.modules["torch"].cuda.get_device_name(device) if device.type == "cuda" else ""
        return f"{device} {name}".strip()[:_MAX_DEVICE]
    except Exception:  # noqa: BLE001 - an optimizer of the user's own may hold anything; the step goes on
        return None


def _cuda_is_started() -> bool:
    cuda: Any = sys.modules.get("torch.cuda")
    try:
        return bool(cuda is not None and cuda.is_initialized())
    except Exception:  # noqa: BLE001
        return False


def _int(text: Optional[str]) -> int:
    return int(text) if text and text.isdigit() else 1
