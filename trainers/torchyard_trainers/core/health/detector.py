"""Find spikes of the loss and of the gradient norm by robust statistics of the steps before (pure).

All ranks see the same sums, and find the same.

A value is a spike if it is far above the median of the newest sound steps, measured in robust standard deviations
(1.4826 times the median absolute deviation). Gradient norms are compared by their logarithms: they vary by factors.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Sound steps that a value is compared with, and how many there must be.
WINDOW, FEWEST = 64, 32
# Limits are computed once in so many steps: medians cost more than the rest of a check.
EVERY = 4
OF_NORMAL = 1.4826
LOSS_DEVIATIONS, LOSS_FACTOR_DEVIATIONS, LOSS_SHARE = 12.0, 6.0, 0.1
NORM_DEVIATIONS, NORM_TIMES = 10.0, 10.0
# And so many times as far from the median as the highest of them, since some losses have heavy tails.
TIMES_THE_HIGHEST = 3.0


class Detector:
    """Compares each step with the sound ones before it."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._norms: deque[float] = deque(maxlen=WINDOW)  # logarithms
        self._noted = 0
        self._limits = (math.inf, math.inf)

    def spike(self, loss: float, norm: float) -> str:
        """Return which value is a spike, with its evidence; empty: none is."""
        most_loss, most_norm = self._limits
        if loss > most_loss:
            usual, deviation = _spread(self._losses)
            return _evidence("loss", loss, usual, (loss - usual) / max(deviation, 1e-12), len(self._losses))
        if norm > most_norm:
            usual, deviation = _spread(self._norms)
            times = (math.log(norm) - usual) / max(deviation, 1e-12)
            return _evidence("gradient norm", norm, math.exp(usual), times, len(self._norms))
        return ""

    def note(self, loss: float, norm: float) -> None:
        """Add a step that is not left out."""
        if not (math.isfinite(loss) and math.isfinite(norm) and norm > 0):
            return
        self._losses.append(loss)
        self._norms.append(math.log(norm))
        self._noted += 1
        if len(self._losses) >= FEWEST and self._noted % EVERY == 0:
            self._limits = _loss_limit(self._losses), _norm_limit(self._norms)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, so that a resumed run finds the same spikes."""
        limits = [limit for limit in self._limits if math.isfinite(limit)]
        return {"losses": [*self._losses], "norms": [*self._norms], "noted": self._noted, "limits": limits}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a checkpoint; an empty one starts over."""
        self._losses = deque(state.get("losses", ()), maxlen=WINDOW)
        self._norms = deque(state.get("norms", ()), maxlen=WINDOW)
        self._noted = int(state.get("noted", 0))
        limits = state.get("limits", ())
        self._limits = (limits[0], limits[1]) if len(limits) == 2 else (math.inf, math.inf)


def _loss_limit(losses: Iterable[float]) -> float:
    """Return the loss above which a step is a spike; losses that are all positive must be so by factors, too."""
    known = [*losses]
    limit = _limit(known, LOSS_DEVIATIONS, LOSS_SHARE * abs(statistics.median(known)))
    if min(known) <= 0:
        return limit
    factor = _limit([math.log(loss) for loss in known], LOSS_FACTOR_DEVIATIONS, 0.0)
    return max(limit, math.exp(min(factor, 700.0)))


def _norm_limit(logarithms: Iterable[float]) -> float:
    return math.exp(min(_limit([*logarithms], NORM_DEVIATIONS, math.log(NORM_TIMES)), 700.0))


def _limit(known: Sequence[float], deviations: float, least: float) -> float:
    """Return a value that is far above the median, also compared with how far the highest one is."""
    usual, deviation = _spread(known)
    return usual + max(deviations * deviation, TIMES_THE_HIGHEST * (max(known) - usual), least)


def _spread(values: Iterable[float]) -> tuple[float, float]:
    """Return the median, and the robust standard deviation around it."""
    known = [*values]
    usual = statistics.median(known)
    return usual, OF_NORMAL * statistics.median(abs(value - usual) for value in known)


def _evidence(name: str, value: float, usual: float, deviations: float, steps: int) -> str:
    times = f"{min(deviations, 999.0):.0f} robust deviations above"
    return f"{name} {value:.4g} is {times} the median {usual:.4g} of {steps} steps"
