"""Values of metrics, of which some are not finite: how they are read, written as JSON, and merged (pure).

JSON has no NaN and no infinity. A report therefore has the finite values in `metrics`, and each other one by its name
in `nonFiniteMetrics`; no metric is in both.
"""

from __future__ import annotations

import math
import re
from typing import Any, Dict, Mapping, Optional

from torchyard_agent.files import is_number, is_text, is_whole

METRICS = "metrics"
NON_FINITE = "nonFiniteMetrics"
_NAMES = ("NaN", "Infinity", "-Infinity")
# As JSON, C, Python and JavaScript print numbers. `float` takes more: `1_000`, and the digits of every script.
_NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf(?:inity)?)", re.IGNORECASE | re.ASCII
)


def number(text: str) -> Optional[float]:
    """Return the value of a text, infinity where a float cannot hold it; None if the text is not a number."""
    return float(text) if _NUMBER.fullmatch(text.strip()) else None


def reading(value: Any) -> Optional[float]:
    """Return the value of a metric in JSON: a number, or a text such as `"NaN"`; None for anything else."""
    if is_number(value) or isinstance(value, float):
        return float(value)
    named = number(value) if is_text(value) else None
    return named if named is not None and not math.isfinite(named) else None


def as_json(value: float) -> Any:
    """Return a value as strict JSON has it: a number, or one of `"NaN"`, `"Infinity"`, `"-Infinity"`."""
    return value if math.isfinite(value) else non_finite_name(value)


def non_finite_name(value: float) -> str:
    """Return the name of a value that is not finite."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def values_of(report: Mapping[str, Any]) -> Dict[str, float]:
    """Return the newest value of each metric of a report, those that are not finite among them."""
    others = {name: float(entry["value"]) for name, entry in report.get(NON_FINITE, {}).items()}
    return {**report.get(METRICS, {}), **others}


def with_values(report: Mapping[str, Any], values: Mapping[str, float], step: int) -> Dict[str, Any]:
    """Return a report in which `values` replace those of the same names.

    Args:
        report: with or without metrics.
        values: any floats.
        step: of the values. A metric that was not finite before keeps the step at which that began.
    """
    finite, others = dict(report.get(METRICS, {})), dict(report.get(NON_FINITE, {}))
    for name, value in values.items():
        if math.isfinite(value):
            others.pop(name, None)
            finite[name] = value
        else:
            finite.pop(name, None)
            since = others[name]["step"] if name in others else step
            others[name] = {"value": non_finite_name(value), "step": since}
    return _without_empty({**report, METRICS: finite, NON_FINITE: others})


def overlaid(base: Mapping[str, Any], over: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a report with the fields of both; of fields and metrics that both have, those of `over`."""
    names = {*over.get(METRICS, {}), *over.get(NON_FINITE, {})}
    merged: Dict[str, Any] = {**base, **over}
    for kind in (METRICS, NON_FINITE):
        others = {name: value for name, value in base.get(kind, {}).items() if name not in names}
        merged[kind] = {**others, **over.get(kind, {})}
    return _without_empty(merged)


def _without_empty(report: Dict[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in report.items() if value or name != NON_FINITE}


def understood_values(raw: Mapping[str, Any], step: int, before: Mapping[str, Any]) -> Dict[str, Any]:
    """Return `metrics` and `nonFiniteMetrics` of a report file that any program may have written.

    A value that is not finite may stand in either of them; what is no value at all is left out.

    Args:
        raw: the report.
        step: of the report.
        before: the report before it, which knows since which step a metric has not been finite.
    """
    metrics, others = raw.get(METRICS), raw.get(NON_FINITE)
    read = {name: reading(value) for name, value in metrics.items()} if isinstance(metrics, dict) else {}
    values = {name: value for name, value in read.items() if value is not None}
    since = {
        name: entry for name, entry in before.get(NON_FINITE, {}).items() if not math.isfinite(values.get(name, 0))
    }
    for name, entry in others.items() if isinstance(others, dict) else ():
        if isinstance(entry, dict) and entry.get("value") in _NAMES and is_whole(entry.get("step")):
            since[name] = {"value": entry["value"], "step": entry["step"]}
            values[name] = float(entry["value"])
    return with_values({NON_FINITE: since}, values, step)
