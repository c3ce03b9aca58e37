"""Mode `preflight`, and `spec.preflight` of a training job: checks that everything a run needs works on every rank.

Each check examines one thing on every rank and names the fix if it fails. All checks run before the
result, so that one run finds everything: suspected hardware ends with 68, wrong configuration with 64.
"""

import socket
from collections.abc import Sequence
from typing import NamedTuple

from torchyard_trainers.core.exits import ConfigError, HardwareError
from torchyard_trainers.core.loop import Run
from torchyard_trainers.core.metrics.curves import say
from torchyard_trainers.core.modes.finish import finish_reading
from torchyard_trainers.core.preflight.checks import CHECKS, Finding


class Fault(NamedTuple):
    """What is wrong, and on which ranks."""

    finding: Finding
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]


def preflight(run: Run) -> dict[str, float]:
    """Check every rank and everything between them; give the figures that were measured. Collective.

    Raises:
        HardwareError: something computes, stores or sends wrongly.
        ConfigError: something is missing, too small or forbidden.
    """
    world = run.world
    run.reporter.phase("init")
    found = [finding for check in CHECKS for finding in check(world, run.checkpoint_dir)]
    reports = world.gather((socket.gethostname(), found))
    metrics = figures([findings for _, findings in reports])
    run.reporter.metrics(metrics)
    faults = collect([(rank, host, finding) for rank, (host, findings) in enumerate(reports) for finding in findings])
    if world.is_main:
        for finding in reports[0][1]:
            say(f"{'ok  ' if not finding.fault else 'FAIL'}  {finding.what}")
    if faults:
        raise as_error(faults)
    if run.config.trainer.mode == "preflight":
        run.reporter.progress(1, 1)
        finish_reading(run, 1, metrics)
    return metrics


def figures(reports: Sequence[Sequence[Finding]]) -> dict[str, float]:
    """Return the worst figure of all ranks by name: rates are as fast as the slowest."""
    merged: dict[str, float] = {}
    for findings in reports:
        for finding in findings:
            for name, value in finding.figures.items():
                merged[name] = min(merged.get(name, value), value)
    return merged


def collect(reports: Sequence[tuple[int, str, Finding]]) -> list[Fault]:
    """Put the same fault of several ranks together."""
    ranks: dict[tuple[str, str], list[tuple[int, str, Finding]]] = {}
    for rank, host, finding in reports:
        if finding.fault:
            ranks.setdefault((finding.fault, finding.fix), []).append((rank, host, finding))
    return [
        Fault(group[0][2], tuple(rank for rank, _, _ in group), tuple(dict.fromkeys(host for _, host, _ in group)))
        for group in ranks.values()
    ]


def as_error(faults: Sequence[Fault]) -> HardwareError | ConfigError:
    """Word all faults as one error; hardware weighs more, since the next round can avoid its node."""
    lines = [
        f"rank{'s' if len(fault.ranks) > 1 else ''} {', '.join(map(str, fault.ranks))} on {', '.join(fault.hosts)}: "
        f"{fault.finding.fault}; {fault.finding.fix}"
        for fault in sorted(faults, key=lambda fault: not fault.finding.hardware)
    ]
    kind = HardwareError if any(fault.finding.hardware for fault in faults) else ConfigError
    return kind("preflight: " + " | ".join(lines))
