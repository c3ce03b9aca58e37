"""Progress of the local ranks: their report files, joined with what Hugging Face posts and what patterns find."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from torchyard_agent.files import is_number, is_text, is_whole, read_json
from torchyard_agent.telemetry.milestones import Milestones
from torchyard_agent.telemetry.readings import (
    METRICS,
    NON_FINITE,
    number,
    overlaid,
    understood_values,
    values_of,
    with_values,
)

# Measured by the hooks in a separate file, since only one writer may own a report.
PACE = ("windowSteps", "stepSeconds", "computeSeconds", "computeLowSeconds")
_TRIMMED = (
    "round",
    "rank",
    "localRank",
    "counter",
    "step",
    "phase",
    "phaseSince",
    "time",
    "stillSeconds",
    "device",
    "aloneSeconds",
    *PACE,
)
_MAX_METRICS = 64
_MAX_ARTIFACTS = 16
_NO_TOTAL = (
    "the total number of steps is unknown, so that no value of {metric} is kept for early stopping: "
    "report total_steps, or give spec.metrics.totalSteps"
)
_TOO_MANY = "the status has at most {most} metrics; {name} and later ones are left out. Report fewer metrics"
# Names Hugging Face's progress call gives to what a report has fields for.
_FIELDS = {"current_step": "step", "total_steps": "totalSteps", "current_epoch": "epoch"}
_PATTERN_FIELDS = {"step": "step", "total_steps": "totalSteps", "totalSteps": "totalSteps", "epoch": "epoch"}
# `nan` in the place of a value, which C prints; Python and JSON have no such word.
_BARE = re.compile(r"(?P<before>:\s*)(?P<value>[+-]?(?:nan|inf(?:inity)?))(?=\s*[,}])", re.IGNORECASE)
# What a report file may hold; see docs/protocol.md.
_REQUIRED = ("round", "rank", "step")
_KINDS: Dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("round", "rank", "localRank", "pid", "counter", "step", "totalSteps", "roundSteps"), is_whole),
    **dict.fromkeys(("time", "epoch", "phaseSince", "aloneSeconds"), is_number),
    **dict.fromkeys(("throughput", "batch"), lambda value: isinstance(value, dict)),
    **dict.fromkeys(("phase", "device"), is_text),
    "checkpoint": lambda value: isinstance(value, dict) and is_whole(value.get("step")),
    "warnings": lambda value: isinstance(value, list),
    "artifacts": lambda value: isinstance(value, list),
    **dict.fromkeys(("saves", "fromStart"), lambda value: isinstance(value, bool)),
}


def understood(raw: Dict[str, Any], before: Optional[Dict[str, Any]] = None) -> Optional[Dict[str, Any]]:
    """Return the fields of a report file that are of the kind they should be: any program in any language may write it.

    Args:
        raw: what the file says.
        before: the last report of the same rank.

    Returns:
        None if `round`, `rank` or `step` is not among the fields.
    """
    report = {name: value for name, value in raw.items() if name in _KINDS and _KINDS[name](value)}
    if not all(name in report for name in _REQUIRED):
        return None
    if "throughput" in report:
        report["throughput"] = {key: value for key, value in report["throughput"].items() if is_number(value)}
    if isinstance(raw.get(METRICS), dict) or isinstance(raw.get(NON_FINITE), dict):
        report.update(understood_values(raw, report["step"], before or {}))
    return report


def read_report(path: Path) -> Dict[str, Any]:
    """Return the object of a report file, in which NaN and infinity may be as Python or C prints them; else nothing."""
    return read_json(path, repair=lambda text: _BARE.sub(r'\g<before>"\g<value>"', text)) or {}


def from_kubeflow(body: Any) -> Dict[str, Any]:
    """Return the fields of a report in a Kubeflow progress call: `{"trainerStatus": {"metrics": [...], ...}}`.

    Raises:
        ValueError: it is not of that form.
    """
    status = body.get("trainerStatus") if isinstance(body, dict) else None
    if not isinstance(status, dict) or not isinstance(status.get("metrics") or [], list):
        raise ValueError("`trainerStatus` must be an object, `trainerStatus.metrics` a list of {name, value}")  # noqa: TRY004 - all bad bodies are one kind
    numbers = {}
    for metric in status.get("metrics") or []:
        with contextlib.suppress(TypeError, KeyError, ValueError, OverflowError):
            value = number(str(metric["value"]))
            if value is not None:
                numbers[str(metric["name"])] = value
    return _split(numbers, _FIELDS)


def from_patterns(metrics: Dict[str, float]) -> Dict[str, Any]:
    """Return the fields of a report from named groups of metric patterns."""
    return _split(metrics, _PATTERN_FIELDS)


def _split(numbers: Dict[str, float], fields: Dict[str, str]) -> Dict[str, Any]:
    """Return the fields among the numbers, and in `metrics` all others, also those that are not finite."""
    stated = {fields[name]: value for name, value in numbers.items() if name in fields}
    report: Dict[str, Any] = {name: value for name, value in stated.items() if is_number(value)}
    for name in ("step", "totalSteps"):
        if name in report:
            report[name] = int(report[name])
            if not is_whole(report[name]) or report[name] < 0:
                del report[name]
    metrics = {name: value for name, value in numbers.items() if name not in fields}
    if metrics:
        report[METRICS] = metrics
    return report


def join(report: Optional[Dict[str, Any]], extra: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """Return `report` with the fields of `extra` laid over it; the larger of two step counts is used.

    A count of optimizer steps starts at 0 again in a resumed program, whose own count does not.
    """
    if not extra:
        return report
    base = report or {}
    joined = overlaid(base, extra)
    if "step" in joined:
        joined["step"] = max(base.get("step", 0), extra.get("step", 0))
    if "step" in extra:
        joined.pop("fromStart", None)
    return joined if "step" in joined else None


def trimmed(reports: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Reports as they go to the operator: local rank 0 whole, of the others only where they are."""
    out = []
    for report in reports:
        if report.get("localRank", 0) == 0:
            whole = dict(report)
            # First those that are not finite: one that is missing would look as if it had its last value.
            others = dict(list(report.get(NON_FINITE, {}).items())[:_MAX_METRICS])
            most = _MAX_METRICS - len(others)
            metrics = report.get(METRICS, {})
            whole[METRICS] = dict(list(metrics.items())[:most])
            if others:
                whole[NON_FINITE] = others
            warnings = report.get("warnings", [])
            if len(metrics) > most:
                warnings = [*warnings, _TOO_MANY.format(most=_MAX_METRICS, name=list(metrics)[most][:64])]
            whole["warnings"] = [str(text)[:200] for text in warnings[-5:]]
            if "artifacts" in report:
                whole["artifacts"] = report["artifacts"][:_MAX_ARTIFACTS]
            out.append(whole)
        else:
            out.append({name: report[name] for name in _TRIMMED if name in report})
    return out


class Reports:
    """The newest report of each local rank of one round.

    Args:
        run_dir: of the report files.
        round_number: reports of another round are ignored.
        first_rank: global rank of local rank 0.
        procs: number of local ranks.
        milestones: values to keep of programs that do not know of them.
        total_steps: of programs that do not report it.
    """

    def __init__(
        self,
        run_dir: Path,
        round_number: int,
        first_rank: int,
        procs: int,
        *,
        milestones: Optional[Milestones] = None,
        total_steps: Optional[int] = None,
    ) -> None:
        self._run_dir = run_dir
        self._round = round_number
        self._first_rank = first_rank
        self._mtimes: Dict[int, int] = {}
        self._files: Dict[int, Dict[str, Any]] = {}
        self._extra: Dict[int, Dict[str, Any]] = {}
        self._lines: Dict[int, int] = {}
        self._procs = procs
        self._milestones, self._total_steps = milestones, total_steps
        self._kept: Dict[int, Dict[str, Any]] = {}  # milestones by local rank, as in a report
        self._pace: Dict[int, Dict[str, Any]] = {}

    def read(self) -> None:
        """Look at the files again; those that are broken or of another round are as if they were not there."""
        for local_rank in range(self._procs):
            path = self._run_dir / f"report.{local_rank}.json"
            try:
                mtime = path.stat().st_mtime_ns
            except OSError:
                continue
            if self._mtimes.get(local_rank) == mtime:
                continue
            self._mtimes[local_rank] = mtime
            report = understood(read_report(path), self._files.get(local_rank))
            if report is not None and report["round"] == self._round:
                self._files[local_rank] = dict(report, localRank=local_rank)
                self._keep(local_rank)
            measured = read_json(self._run_dir / f"pace.{local_rank}.json") or {}
            if measured.get("round") == self._round:
                self._pace[local_rank] = {name: measured[name] for name in PACE if is_number(measured.get(name))}

    def add(self, local_rank: int, fields: Dict[str, Any], lines: int = 0) -> None:
        """Lay `fields` over the report of `local_rank`, or replace a missing one.

        `lines`: how many lines matched in this round; the step, if neither the program nor a hook reports one.
        """
        self._lines[local_rank] = self._lines.get(local_rank, 0) + lines
        known = self._extra.get(local_rank, {})
        values, stated = fields.get(METRICS, {}), {name: value for name, value in fields.items() if name != METRICS}
        self._extra[local_rank] = {**known, **stated, "time": time.time()}
        step = (self._joined(local_rank) or {}).get("step", 0)
        self._extra[local_rank] = with_values(self._extra[local_rank], values, step)
        self._keep(local_rank)

    def counted(self, local_rank: int) -> int:
        """Return the step in the report file of `local_rank`, 0 before it has one."""
        return int(self._files.get(local_rank, {}).get("step", 0))

    def all(self) -> List[Dict[str, Any]]:
        """Return one report a local rank, in order of rank; ranks that never reported are left out."""
        found = []
        for local_rank in range(self._procs):
            report = self._joined(local_rank)
            if report is not None:
                rank = self._first_rank + local_rank
                # Below a plain command another launcher may count ranks: this pod is one member all the same.
                found.append({"round": self._round, "phase": "step", **report, "rank": rank, "localRank": local_rank})
        return found

    def _joined(self, local_rank: int) -> Optional[Dict[str, Any]]:
        file, extra = self._files.get(local_rank), self._extra.get(local_rank, {})
        if file is None and self._lines.get(local_rank):
            extra = {"step": self._lines[local_rank], **extra}
        report = join(file, extra)
        if report is None:
            return None
        report = {**report, **self._pace.get(local_rank, {})}
        if self._total_steps is not None:
            report = {"totalSteps": self._total_steps, **report}
        if self._milestones is not None:
            # First, since the number of metrics is limited.
            report = overlaid(self._kept.get(local_rank, {}), report)
            if "totalSteps" not in report and self._milestones.metric in values_of(report):
                missing = _NO_TOTAL.format(metric=self._milestones.metric)
                report["warnings"] = [*report.get("warnings", []), missing]
        return report

    def _keep(self, local_rank: int) -> None:
        """Keep the values at the milestones that a rank has just passed."""
        report = self._joined(local_rank) if self._milestones is not None else None
        if self._milestones is None or report is None:
            return
        passed = self._milestones.passed(report["step"], report.get("totalSteps"), values_of(report))
        if passed:
            self._kept[local_rank] = with_values(self._kept.get(local_rank, {}), passed, report["step"])
