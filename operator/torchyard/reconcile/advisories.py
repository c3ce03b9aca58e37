"""Warnings of the operator: the job continues, but probably not as its author intended."""

from collections.abc import Iterable, Sequence

from torchyard.api.formatting import plural
from torchyard.api.reasons import Reason
from torchyard.api.status import TrainingJobStatus
from torchyard.reconcile.view import RankReport, View

# A program may make its first steps before it creates the process group, to warm up or to compile.
ALONE_SECONDS = 60.0
MAX_DEVICES = 16
MAX_RANGES = 200

Advisory = tuple[str, str]
"""Reason code and evidence. The evidence does not change from step to step: each is announced once."""


def advisories(view: View, status: TrainingJobStatus, reports: Sequence[RankReport]) -> tuple[Advisory, ...]:
    """Return what to warn of in the open round."""
    found = (_not_communicating(view, status, reports), _unused_gpus(view, reports))
    return tuple(each for each in found if each is not None)


def devices(reports: Iterable[RankReport]) -> dict[str, str]:
    """Return the ranks of each device, as ranges: `{"cuda:0 NVIDIA H100": "0,8", "cpu": "1-7"}`."""
    ranks: dict[str, list[int]] = {}
    for report in reports:
        if report.device:
            ranks.setdefault(report.device, []).append(report.rank)
    return {device: ranges(found) for device, found in sorted(ranks.items())[:MAX_DEVICES]}


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers as ranges, cut where they are too many to be read: `0-7,16,24-31`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
    return text if len(text) <= MAX_RANGES else f"{text[:MAX_RANGES].rpartition(',')[0]},..."


def _not_communicating(view: View, status: TrainingJobStatus, reports: Sequence[RankReport]) -> Advisory | None:
    """Return ranks that made steps although none of them created a process group, if they can be inspected."""
    alone = [each for each in reports if each.alone_seconds is not None]
    if len(alone) < 2 or len(alone) < len(reports):
        return None
    over = [_ended_well(view, uid, status.round) for uid in status.rendezvous.members]
    if not all(over) and min(each.alone_seconds or 0.0 for each in alone) < ALONE_SECONDS:
        return None
    return Reason.RANKS_NOT_COMMUNICATING, f"{plural(len(alone), 'rank')} made steps, none created a process group"


def _ended_well(view: View, uid: str, number: int) -> bool:
    agent = view.agents.get(uid)
    ended = agent.exit if agent is not None else None
    return ended is not None and ended.round == number and ended.code == 0


def _unused_gpus(view: View, reports: Sequence[RankReport]) -> Advisory | None:
    asked = view.job.spec.gpus_per_node
    idle = [each.rank for each in reports if each.device == "cpu"]
    if not asked or not idle:
        return None
    who = f"rank {idle[0]} trains" if len(idle) == 1 else f"ranks {ranges(idle)} train"
    return Reason.GPUS_NOT_USED, f"{who} on the CPU, gpusPerNode is {asked}"
