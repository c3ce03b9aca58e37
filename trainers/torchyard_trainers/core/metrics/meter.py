"""Speed and utilisation: the report's `throughput`, and a few metrics."""

import resource
import time
from collections.abc import Mapping

import torch

from torchyard_trainers.core.metrics.curves import Speed
from torchyard_trainers.core.metrics.flops import flops_of_sample
from torchyard_trainers.core.metrics.peaks import peak_of
from torchyard_trainers.core.workload import Session, Workload


class Meter:
    """Measures throughput; `tick` is called after every step.

    Attributes:
        flops: of forward and backward pass of one sample; None: not requested, and the device's peak is unknown.
    """

    def __init__(self, work: Workload, session: Session, step: int, *, count: bool = False) -> None:
        """Count FLOPs of `step`, which is prepared, if every device's peak is known or `count` is set. Collective."""
        self._session = session
        self._speed = Speed(work.global_batch)
        self._peak = device_peak(session)
        self.flops = flops_of_sample(work, session, step) if count or self._peak else None
        self._waited, self._began = session.data_wait.seconds, time.monotonic()

    def tick(self, now: float, values: Mapping[str, float]) -> dict[str, float]:
        """Count a finished step at `now` (monotonic seconds); return the throughput of the whole gang.

        A value `tokens` (tokens per sample) adds tokens per second.
        """
        pace = self._speed.tick(now)
        samples = pace.get("samplesPerSecond")
        if samples is not None and "tokens" in values:
            pace["tokensPerSecond"] = samples * values["tokens"]
        if samples is not None and self._peak is not None and self.flops is not None:
            pace["mfu"] = utilisation(self.flops, samples, self._peak, self._session.world.size)
        return pace

    def metrics(self) -> dict[str, float]:
        """Return peak memory of this process, and the share of its time that this round waited for data."""
        found = {"memoryPeakBytes": peak_memory(self._session.world.device)}
        elapsed, waited = time.monotonic() - self._began, self._session.data_wait.seconds - self._waited
        if waited and elapsed > 0:
            found["dataWaitShare"] = min(1.0, waited / elapsed)
        return found


def utilisation(flops_of_sample: float, samples_per_second: float, peak: float, devices: int) -> float:
    """Return the model FLOPs utilisation (PaLM, appendix B), 0 to 1; `peak` is that of one device."""
    return flops_of_sample * samples_per_second / (peak * devices)


def device_peak(session: Session) -> float | None:
    """Return the mean peak of all ranks' devices in the precision of the run, None if one is not known. Collective.

    Ranks must agree: otherwise only some of them would run the counted passes, which are collective.
    """
    peaks = session.world.gather(own_peak(session))
    known = [peak for peak in peaks if peak is not None]
    return sum(known) / len(known) if len(known) == len(peaks) else None


def own_peak(session: Session) -> float | None:
    """Return the peak of this rank's device in the precision of the run, None if it is not known."""
    device = session.world.device
    if device.type != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name(device), session.precision.name)


def peak_memory(device: torch.device) -> float:
    """Return the peak memory of this process in bytes, on its GPU if it has one."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
