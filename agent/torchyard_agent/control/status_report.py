"""What is reported to the operator, and which changes cannot wait for the next poll (pure)."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from torchyard_agent.control.rounds import RoundState
from torchyard_agent.telemetry.readings import values_of

_BEFORE_STEPS = ("init", "compile", "restore")


def state(rounds: RoundState, *, leaving: bool, starting: bool) -> str:
    """`state` of the protocol. `leaving`: the pod is to end; `starting`: torch is still being imported."""
    if leaving:
        return "exiting" if rounds.running is None else "stopping"
    if rounds.running is not None:
        return "stopping" if rounds.ending else "running"
    return "starting" if starting else "ready"


def news(document: Dict[str, Any]) -> Tuple[Any, ...]:
    """Return the fields that are sent at once when one differs from what was sent before."""
    ended = document.get("exit") or {}
    return (
        document["state"],
        document["round"],
        (ended.get("round"), ended.get("time")),
        len(document["notices"]),
        document.get("codes"),
        [(each["name"], each["state"], each.get("message")) for each in document.get("inputs", ())],
        [document.get("requirements", {}).get(name) for name in ("state", "message")],
        _milestones(document["reports"]),
    )


def _milestones(reports: List[Dict[str, Any]]) -> List[Any]:
    """Return what is sent at once of the reports: that training began, each checkpoint, each value at a rung."""
    return [
        (
            report.get("step", 0) > 0,
            report.get("phase") in _BEFORE_STEPS,
            (report.get("checkpoint") or {}).get("step"),
            _rungs(values_of(report)),
        )
        for report in reports
    ]


def _rungs(values: Dict[str, float]) -> int:
    """Return how many values at rungs there are, by which a sweep decides."""
    return sum("@" in name for name in values)
