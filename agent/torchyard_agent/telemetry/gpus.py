"""GPUs of this pod through NVML: inventory and load. Without a driver there are none, which is logged once."""

from __future__ import annotations

import importlib
import os
import threading
from typing import Any, Callable, Dict, List, Optional

from torchyard_agent.telemetry.gpu_health import GpuHealth

_INTERVAL = 5.0


class Gpus:
    """Polls NVML in a separate thread: a faulty driver may block a call for minutes."""

    def __init__(self) -> None:
        self.notice: Optional[str] = None
        self.health = GpuHealth()
        self._nvml: Any = None
        self._handles: List[Any] = []
        self._latest: List[Dict[str, Any]] = []
        self._stop = threading.Event()

    def start(self) -> None:
        """Open NVML, read once, and continue to read in the background."""
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._handles = [
                self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self._nvml.nvmlDeviceGetCount())
            ]
        except ImportError:
            self.notice = "nvidia-ml-py is not packed into this agent: GPU metrics are off"
            return
        except Exception as error:  # noqa: BLE001 - NVMLError is only known once the import worked
            missing = type(error).__name__ in ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded")
            self.notice = "no NVIDIA driver: GPU metrics are off" if missing else f"NVML: {error}: GPU metrics are off"
            return
        self._read()
        self.health.start(self._nvml, {gpu["index"]: self._handles[gpu["index"]] for gpu in self._latest})
        threading.Thread(target=self._run, name="nvml", daemon=True).start()

    def stop(self) -> None:
        """Stop reading."""
        self._stop.set()
        self.health.stop()

    def latest(self) -> List[Dict[str, Any]]:
        """Return the newest readings, a dictionary for each GPU; what a GPU does not support is left out."""
        return self._latest

    def count(self) -> int:
        """GPUs a worker of this pod can use; 0 without a driver."""
        return len(self._latest)

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL):
            self._read()

    def _read(self) -> None:
        found = [self._one(index, handle) for index, handle in enumerate(self._handles)]
        self._latest = visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))
        for gpu in self._latest:
            self.health.read(gpu["index"], self._handles[gpu["index"]])

    def _one(self, index: int, handle: Any) -> Dict[str, Any]:
        nvml = self._nvml
        memory = _try(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        found = {
            "uuid": _text(_try(lambda: nvml.nvmlDeviceGetUUID(handle))),
            "product": _text(_try(lambda: nvml.nvmlDeviceGetName(handle))),
            "index": index,
            "memoryTotalBytes": memory and int(memory.total),
            "memoryUsedBytes": memory and int(memory.used),
            "utilization": _try(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            "temperatureC": _try(lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
            "powerW": _try(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0),
        }
        return {name: value for name, value in found.items() if value is not None}


def visible(gpus: List[Dict[str, Any]], names: Optional[str]) -> List[Dict[str, Any]]:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES` leaves to workers, by index or by a prefix of the uuid."""
    if names is None:
        return gpus
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    return [
        gpu
        for gpu in gpus
        if any(
            name == str(gpu["index"]) or (len(name) > 4 and str(gpu.get("uuid", "")).startswith(name))
            for name in wanted
        )
    ]


def _try(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception:  # noqa: BLE001 - every call may be unsupported on some board; the others still tell
        return None


def _text(value: Any) -> Optional[str]:
    return value.decode() if isinstance(value, bytes) else value
