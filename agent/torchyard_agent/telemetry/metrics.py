"""The agent's state as Prometheus text (pure)."""

from __future__ import annotations

import math
import re
from typing import Any, Dict, Iterator, List, Optional, Tuple

from torchyard_agent.telemetry.readings import non_finite_name, values_of

_STATES = ("starting", "ready", "running", "stopping", "exiting")
_GPU = {
    "memoryTotalBytes": "memory_total_bytes",
    "memoryUsedBytes": "memory_used_bytes",
    "utilization": "utilization_percent",
    "temperatureC": "temperature_celsius",
    "powerW": "power_watts",
}

Sample = Tuple[str, Dict[str, Any], Optional[float]]


def render(status: Dict[str, Any]) -> str:
    """Return the text exposition of `/status`. Every metric is a gauge and starts with `torchyard_`."""
    families: Dict[str, List[str]] = {}
    for name, labels, value in _samples(status):
        if isinstance(value, (int, float)):
            families.setdefault(f"torchyard_{name}", []).append(
                f"torchyard_{name}{_labels(labels)} {_text(float(value))}"
            )
    return "".join(f"# TYPE {name} gauge\n" + "\n".join(lines) + "\n" for name, lines in families.items())


def _samples(status: Dict[str, Any]) -> Iterator[Sample]:
    for state in _STATES:
        yield "agent_state", {"state": state}, float(status.get("state") == state)
    yield "round", {}, status.get("round")
    yield "operator_connected", {}, float(bool(status.get("operatorConnected")))
    ended = status.get("exit") or {}
    yield "last_exit_code", {}, ended.get("code")
    for report in status.get("reports") or []:
        yield from _progress(report)
    for gpu in status.get("gpus") or []:
        labels = {"index": gpu.get("index"), "uuid": gpu.get("uuid"), "product": gpu.get("product")}
        for field, name in _GPU.items():
            yield f"gpu_{name}", labels, gpu.get(field)


def _progress(report: Dict[str, Any]) -> Iterator[Sample]:
    rank = {"rank": report.get("rank")}
    yield "step", rank, report.get("step")
    yield "steps_total", rank, report.get("totalSteps")
    yield "epoch", rank, report.get("epoch")
    yield "report_timestamp_seconds", rank, report.get("time")
    for name, value in (report.get("throughput") or {}).items():
        yield f"throughput_{_name(name)}", rank, value
    for name, value in values_of(report).items():
        yield "metric", {"name": name, **rank}, value


def _text(value: float) -> str:
    return f"{value:.17g}" if math.isfinite(value) else non_finite_name(value).replace("Infinity", "Inf")


def _name(camel: str) -> str:
    return re.sub(r"[^a-z0-9_]", "_", re.sub(r"(?<!^)([A-Z])", r"_\1", camel).lower())


def _labels(labels: Dict[str, Any]) -> str:
    if not labels:
        return ""
    escaped = (
        (key, str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for key, value in labels.items()
    )
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}"
