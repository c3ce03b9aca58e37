"""What the charts of a sweep show: its history and parallel coordinates, as shares of their axes (pure).

`cli/views/sweep_charts.py` draws them into a report, the page into a browser.
"""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from torchyard.api.values import figure
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.results import Result, best_so_far, text_of
from torchyard.sweeps.space import short_names
from torchyard.sweeps.spec import Parameter

WIDE_RANGE = 1000.0
"""Positive values that differ by more than this factor are shown on a logarithmic scale."""


class Axis(Struct, frozen=True, kw_only=True):
    """An axis from 0, its low end, to 1.

    Attributes:
        name: of the parameter or metric.
        ticks: places and labels.
        optional: whether there are trials without a value on it.
    """

    name: str
    ticks: list[tuple[float, str]]
    optional: bool = False


class Point(Struct, frozen=True, kw_only=True):
    """The value of a trial.

    Attributes:
        number: of the trial.
        name: of its job.
        share: place on the axis; None: the value is not finite.
        value: for people.
        outcome: of the trial.
        percent: of the steps after which it has the value.
        best: whether it is the best.
    """

    number: int
    name: str
    share: float | None
    value: str
    outcome: str
    percent: int
    best: bool


class History(Struct, frozen=True, kw_only=True):
    """The values of the trials by number.

    Attributes:
        axis: of the objective.
        last: number of the newest trial.
        points: values, finite ones first.
        best: number of each trial that trained to its end, with the best value so far.
    """

    axis: Axis
    last: int
    points: list[Point]
    best: list[tuple[int, float]]


class Line(Struct, frozen=True, kw_only=True):
    """A trial across all axes; a share of None: it does not have the parameter."""

    name: str
    value: str
    shares: list[float | None]
    best: bool


class Coordinates(Struct, frozen=True, kw_only=True):
    """Trials across an axis for each parameter and the objective; the best one is last."""

    axes: list[Axis]
    lines: list[Line]


class _Scale(NamedTuple):
    axis: Axis
    share: Callable[[Any], float]


def history_of(sweep: TrainingSweep, results: Sequence[Result]) -> History | None:
    """Return the history; None: no trial has reported a finite value."""
    finite = [(each, each.value) for each in results if each.value is not None]
    if not finite:
        return None
    scale = _value_scale(sweep.spec.objective.metric, [value for _, value in finite])
    complete = [each.number for each in results if each.outcome == "complete" and each.value is not None]
    best = [(number, scale.share(value)) for number, value in zip(complete, best_so_far(sweep, results), strict=True)]
    points = [_point(each, scale.share(value)) for each, value in finite]
    points += [_point(each, None) for each in results if each.non_finite is not None]
    return History(axis=scale.axis, last=results[-1].number, points=points, best=best)


def coordinates_of(sweep: TrainingSweep, results: Sequence[Result]) -> Coordinates | None:
    """Return the coordinates of the trials that trained to their end; None: there are none."""
    shown = [(each, each.value) for each in results if each.outcome == "complete" and each.value is not None]
    if not shown:
        return None
    names, parameters = short_names(sweep.spec.parameters), sweep.spec.parameters
    scales = [_scale_of(parameter, names[parameter.path]) for parameter in parameters]
    objective = _value_scale(sweep.spec.objective.metric, [value for _, value in shown])
    lines = []
    for each, value in sorted(shown, key=lambda item: item[0].best):
        shares: list[float | None] = [
            scale.share(each.parameters[parameter.path]) if parameter.path in each.parameters else None
            for scale, parameter in zip(scales, parameters, strict=True)
        ]
        shares.append(objective.share(value))
        lines.append(Line(name=each.name, value=figure(value), shares=shares, best=each.best))
    return Coordinates(axes=[*(scale.axis for scale in scales), objective.axis], lines=lines)


def _point(result: Result, share: float | None) -> Point:
    return Point(
        number=result.number, name=result.name, share=share, value=result.objective, outcome=result.outcome,
        percent=result.percent, best=result.best,
    )  # fmt: skip


def _scale_of(parameter: Parameter, name: str) -> _Scale:
    bounds, optional = parameter.float_ or parameter.int_, bool(parameter.conditions)
    if bounds is None:
        most = max(1, len(parameter.choice) - 1)
        every = 1 + len(parameter.choice) // 12
        ticks = [(index / most, text_of(value)) for index, value in enumerate(parameter.choice)][::every]
        axis = Axis(name=name, ticks=ticks, optional=optional)
        return _Scale(axis, lambda value: parameter.choice.index(value) / most)
    return _scale(name, bounds.min, bounds.max, log=bounds.log, optional=optional)


def _value_scale(name: str, values: Sequence[float]) -> _Scale:
    low, high = min(values), max(values)
    return _scale(name, low, high, log=low > 0 and high / low > WIDE_RANGE)


def _scale(name: str, low: float, high: float, *, log: bool, optional: bool = False) -> _Scale:
    """Return an axis with its ends and what is between them as labels."""
    if not high > low:
        return _Scale(Axis(name=name, ticks=[(0.5, text_of(low))], optional=optional), lambda _value: 0.5)

    def share(value: float) -> float:
        if log:
            return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
        return (value / 2 - low / 2) / (high / 2 - low / 2)  # the difference of the largest numbers is infinite

    between = _decades(low, high) if log else round_numbers(low, high)
    every = 1 + len(between) // 8
    labels = [(share(each), each) for each in [low, *between[::every], high]]
    far = [(at, each) for at, each in labels if each in {low, high} or 0.07 < at < 0.93]
    ticks = [(at, text_of(each)) for at, each in dict(far).items()]
    return _Scale(Axis(name=name, ticks=ticks, optional=optional), share)


def _decades(low: float, high: float) -> list[float]:
    """Return the powers of ten between two positive numbers."""
    return [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def round_numbers(low: float, high: float) -> list[float]:
    """Return about five round numbers between two."""
    distance = high / 5 - low / 5
    if distance < sys.float_info.min or not math.isfinite(distance):
        return []
    step = 10.0 ** math.floor(math.log10(distance))
    step *= next(factor for factor in (1, 2, 5, 10) if distance <= factor * step)
    return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]
