"""Health of this pod's GPUs through NVML: errors that the driver reports (XID), lost GPUs, memory rows, throttling.

The table is that of NVIDIA's XID catalogue (https://docs.nvidia.com/deploy/xid-errors). A fault that no program causes
and no program survives ends the round at once: ranks that wait for a lost GPU would only end at the timeout of their
collective. Other faults explain a failure that follows. Errors of the program, such as an access to memory that is not
there, are named and change nothing.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional

_WAIT_MS = 5000
_FAULTS = 16  # remembered, the newest ones
_THROTTLED_SECONDS = 60.0
_LOST = "NVMLError_GpuIsLost"

# XID -> what it means. The GPU is of no use any more.
FATAL = {
    48: "double-bit ECC error in GPU memory",
    62: "the controller of the GPU halted",
    64: "a broken row of GPU memory could not be replaced",
    79: "the GPU has fallen off the bus",
    95: "uncontained ECC error in GPU memory",
    119: "the firmware of the GPU does not answer",
    120: "error in the firmware of the GPU",
    140: "ECC error that could not be corrected",
}
# The hardware is at fault if the round fails; the round may also continue.
SUSPECT = {
    74: "error on an NVLink",
    94: "contained ECC error in GPU memory",
    136: "the training of an NVLink failed",
    149: "error on an NVLink",
}
PROGRAM = {
    13: "exception in a kernel",
    31: "access to GPU memory that is not mapped",
    32: "invalid push buffer",
    43: "the GPU stopped processing a program",
    45: "the channel of a program was closed",
    68: "exception in the video decoder",
    69: "exception in a kernel",
}
# Bits of nvmlDeviceGetCurrentClocksEventReasons that no setting of a user causes.
_THROTTLES = {0x8: "the hardware slows it down", 0x40: "it is too hot", 0x80: "its power supply brakes it"}


class Fault(NamedTuple):
    """One error of a GPU.

    Attributes:
        time: unix seconds.
        gpu: its index in this pod; -1: not known.
        message: the GPU and its error.
        hardware: no program causes it.
        fatal: no program survives it.
    """

    time: float
    gpu: int
    message: str
    hardware: bool
    fatal: bool


def fault_of_xid(number: int, gpu: int, uuid: str, now: float) -> Fault:
    """Return the fault that an XID of the driver reports about a GPU."""
    meaning = FATAL.get(number) or SUSPECT.get(number) or PROGRAM.get(number)
    name = f"GPU {gpu} ({uuid})" if gpu >= 0 else "a GPU"
    message = f"{name}: XID {number}" + (f", {meaning}" if meaning else "")
    hardware = number in FATAL or number in SUSPECT
    return Fault(time=now, gpu=gpu, message=message, hardware=hardware, fatal=number in FATAL)


class GpuHealth:
    """Waits for events of the driver in a thread, and compares the counters of each reading."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._indices: Dict[str, int] = {}  # by UUID
        self._faults: List[Fault] = []
        self._lost: Dict[int, bool] = {}
        self._broken_rows: Dict[int, bool] = {}
        self._throttled: Dict[int, float] = {}  # since when, monotonic seconds
        self._notices: Dict[str, str] = {}
        self._stop = threading.Event()

    def start(self, nvml: Any, handles: Dict[int, Any]) -> None:
        """Register for events of these GPUs, by index, and wait for them in the background."""
        self._nvml = nvml
        for index, handle in handles.items():
            self.read(index, handle)  # what is broken already is no event
        try:
            events = nvml.nvmlEventSetCreate()
            for index, handle in handles.items():
                uuid = _text(nvml.nvmlDeviceGetUUID(handle))
                self._indices[uuid] = index
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except Exception as error:  # noqa: BLE001 - not every board and platform has events
            self._notices["events"] = f"NVML: {error}: errors of the GPUs (XID) are not seen"
            return
        threading.Thread(target=self._wait, args=(events,), name="nvml-events", daemon=True).start()

    def stop(self) -> None:
        """Wait for no more events."""
        self._stop.set()

    def fault_since(self, begin: float) -> Optional[Fault]:
        """Return the first fault of hardware since `begin`, unix seconds, a fatal one first; None: there is none."""
        faults = (each for each in self._faults if each.time >= begin and each.hardware)
        return min(faults, key=lambda each: (not each.fatal, each.time), default=None)

    def program_errors_since(self, begin: float) -> List[str]:
        """Return the messages of errors that programs cause, since `begin`, unix seconds."""
        return [each.message for each in self._faults if each.time >= begin and not each.hardware]

    def notices(self) -> List[str]:
        """Return sentences about GPUs that work less well than they should."""
        return list(self._notices.values())

    def read(self, index: int, handle: Any) -> None:
        """Compare state and counters of one GPU with those of the last reading."""
        nvml, name = self._nvml, f"GPU {index}"
        if nvml is None:
            return
        lost = self._is_lost(handle)
        if lost and not self._lost.get(index, False):
            self._add(
                Fault(time.time(), index, f"{name} is lost: the driver does not reach it", hardware=True, fatal=True)
            )
        self._lost[index] = lost
        if lost:
            return
        rows = self._rows(handle)
        if rows is not None:
            _, broken, pending, failed = rows
            if failed and not self._broken_rows.get(index, True):
                message = f"{name}: a broken row of its memory could not be replaced"
                self._add(Fault(time.time(), index, message, hardware=True, fatal=True))
            self._broken_rows[index] = bool(failed)
            text = f"{name}: {broken} broken rows of its memory, the next reset of the GPU replaces them"
            self._note(f"rows {index}", text, on=bool(pending))
        self._read_throttling(index, name, handle)

    def _read_throttling(self, index: int, name: str, handle: Any) -> None:
        reasons = self._clock_reasons(handle)
        why = next((text for bit, text in _THROTTLES.items() if reasons & bit), "")
        if not why:
            self._throttled.pop(index, None)
        since = self._throttled.setdefault(index, time.monotonic()) if why else time.monotonic()
        lasts = time.monotonic() - since >= _THROTTLED_SECONDS
        self._note(f"clocks {index}", f"{name} runs below its clock: {why}", on=bool(why) and lasts)

    def _note(self, key: str, text: str, *, on: bool) -> None:
        if on:
            self._notices[key] = text
        else:
            self._notices.pop(key, None)

    def _wait(self, events: Any) -> None:
        nvml = self._nvml
        while not self._stop.is_set():
            try:
                event = nvml.nvmlEventSetWait_v2(events, _WAIT_MS)
            except nvml.NVMLError as error:
                if type(error).__name__ == "NVMLError_Timeout":
                    continue
                if type(error).__name__ == _LOST:  # of which GPU shows the next reading
                    self._stop.wait(1.0)
                    continue
                self._notices["events"] = f"NVML: {error}: errors of the GPUs (XID) are no longer seen"
                return
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                uuid = self._uuid(event.device)
                self._add(fault_of_xid(int(event.eventData), self._indices.get(uuid, -1), uuid, time.time()))

    def _uuid(self, handle: Any) -> str:
        try:
            return _text(self._nvml.nvmlDeviceGetUUID(handle))
        except Exception:  # noqa: BLE001 - a GPU that is lost has no name any more
            return ""

    def _add(self, fault: Fault) -> None:
        # Another list, since the agent's loop reads the former one at the same time.
        self._faults = [*self._faults, fault][-_FAULTS:]

    def _is_lost(self, handle: Any) -> bool:
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except Exception as error:  # noqa: BLE001 - NVMLError is only known once the import worked
            return type(error).__name__ == _LOST
        return False

    def _rows(self, handle: Any) -> Any:
        try:
            return self._nvml.nvmlDeviceGetRemappedRows(handle)
        except Exception:  # noqa: BLE001 - boards before Ampere have none
            return None

    def _clock_reasons(self, handle: Any) -> int:
        try:
            return int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        except Exception:  # noqa: BLE001 - not on every board
            return 0


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
