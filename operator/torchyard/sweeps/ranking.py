"""Rank trials at each rung: which stopped ones continue, and which threshold a new one has to reach (pure)."""

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from statistics import median

from torchyard.sweeps.outcomes import Outcome, Value, better, rungs
from torchyard.sweeps.spec import EarlyStopping, TrainingSweepSpec

_Entry = tuple[float, int]
"""A value, the better the smaller, and its trial; infinity of one that is not finite, in either direction."""


class Ranking:
    """The trials of a history in order at each rung.

    Outcomes are added one by one, so that the rankings of a long history cost no more than the last one.
    """

    def __init__(self, spec: TrainingSweepSpec, stopping: EarlyStopping) -> None:
        self._stopping = stopping
        self._sign = -1.0 if better(spec, 1.0, 0.0) else 1.0
        self._rungs = rungs(stopping)
        self._latest: dict[int, Outcome] = {}
        brackets = len(self._rungs) + 1 if stopping.name == "hyperband" else 1
        self._reached: list[dict[int, list[_Entry]]] = [
            {percent: [] for percent in self._rungs} for _ in range(brackets)
        ]

    def with_outcome(self, outcome: Outcome) -> "Ranking":
        """Return the ranking with one more outcome, which replaces an earlier one of its trial."""
        after = object.__new__(Ranking)
        after._stopping, after._sign, after._rungs = self._stopping, self._sign, self._rungs
        after._latest = dict(self._latest)
        after._reached = [{percent: list(entries) for percent, entries in each.items()} for each in self._reached]
        after.add(outcome)
        return after

    def add(self, outcome: Outcome) -> None:
        """Add one more outcome."""
        reached = self._reached[self._bracket(outcome.trial)]
        if (before := self._latest.get(outcome.trial)) is not None:
            for percent, value in before.values.items():
                entries = reached[percent]
                del entries[bisect_left(entries, (self._place(value), outcome.trial))]
        for percent, value in outcome.values.items():
            insort(reached[percent], (self._place(value), outcome.trial))
        self._latest[outcome.trial] = outcome

    def _place(self, value: Value) -> float:
        return math.inf if isinstance(value, str) else self._sign * value

    def promotable(self) -> Iterator[Outcome]:
        """Yield stopped trials that are among the best at the rung that stopped them, those of late rungs first.

        asha and hyperband let one in `factor` go on; median stops for good. One that was not finite never goes on.
        """
        if self._stopping.name == "median":
            return
        for percent in reversed(self._rungs):
            for reached in self._reached:
                entries = reached[percent]
                for place, trial in entries[: len(entries) // self._stopping.factor]:
                    outcome = self._latest[trial]
                    if math.isfinite(place) and outcome.kind == "stopped" and outcome.percent == percent:
                        yield outcome

    def thresholds(self, trial: int, *, above: int = 0) -> dict[str, float]:
        """Return the value, by percent, below which a new unit of a trial is stopped.

        asha (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning"): of the values at a rung, its own
        among them, the best of `factor` goes on. hyperband: the same among the trials of a bracket, whose first rung
        differs from those of the others. median (Golovin et al. 2017, "Google Vizier"): those that are at least as good
        as the median do. Values that are not finite are the worst ones, except that the median leaves them out.

        Args:
            trial: its former values do not count.
            above: percent that it has reached already.
        """
        stopping, bracket = self._stopping, self._bracket(trial)
        before = self._latest.get(trial)
        found: dict[str, float] = {}
        for percent in self._rungs[bracket:]:
            if percent <= above:
                continue
            entries: Collection[_Entry] = self._reached[bracket][percent]
            if before is not None and percent in before.values:
                entries = [each for each in entries if each[1] != trial]
            places = [place for place, _ in entries]
            finite = [self._sign * place for place in places if math.isfinite(place)]
            if stopping.name == "median":
                if len(finite) >= stopping.min_trials:
                    found[str(percent)] = median(finite)
            elif finite:
                # Beyond the finite ones, the last of them: all that are better go on anyway.
                found[str(percent)] = finite[min(len(finite), max(1, (len(places) + 1) // stopping.factor)) - 1]
        return found

    def _bracket(self, trial: int) -> int:
        """Return the place of a trial's first rung."""
        return trial % len(self._reached)
