"""The inputs of a job as its agents report them: what the pod with the least of each has, and whether all agree."""

from collections.abc import Iterable

from msgspec.structs import replace

from torchyard.api.code_source import REPORT
from torchyard.api.inputs import fetched, request
from torchyard.api.status import InputStatus, State, TrainingJobStatus
from torchyard.api.values import size
from torchyard.reconcile.observed import Agent, InputReport, Observed, Pod

_PROGRESS = ("waiting", "fetching", "ready")


def with_inputs(seen: Observed, status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with the inputs as the agents of the active pods report them.

    The first known revision stays: later pods fetch the same. Without agents the inputs stay as they are.
    """
    known = {(each.name, each.request): each for each in status.inputs}
    found = []
    for each in fetched(seen.view.job.spec):
        before, reports = known.get((each.name, request(each))), [report for _, report in _reports(seen, each.name)]
        if reports:
            found.append(_summary(InputStatus(name=each.name, request=request(each)), before, reports))
        elif before is not None:
            found.append(before)
    return replace(status, inputs=found) if found != status.inputs else status


def _summary(named: InputStatus, before: InputStatus | None, reports: list[InputReport]) -> InputStatus:
    least = min(reports, key=_share)
    pinned = before.revision if before is not None else ""
    return replace(
        named,
        state=least.state if least.state in _PROGRESS else "",
        revision=pinned or next((each.revision for each in reports if each.revision), ""),
        bytes=least.bytes,
        total_bytes=least.total_bytes,
        files=least.files,
    )


def _share(report: InputReport) -> tuple[int, int]:
    return _PROGRESS.index(report.state) if report.state in _PROGRESS else 0, report.bytes or 0


def fetching_code(seen: Observed) -> str:
    """Return how far the code is fetched that was not sent; empty: no pod waits for it."""
    reports = [(pod, report) for pod, report in _reports(seen, REPORT) if not report.is_ready]
    if not reports:
        return ""
    pod, least = min(reports, key=lambda known: _share(known[1]))
    return f"{pod.name}: {_progress(least)}"


def fetching(seen: Observed) -> str:
    """Return which inputs are being fetched and how far; empty: none."""
    said = []
    for each in fetched(seen.view.job.spec):
        reports = [(pod, report) for pod, report in _reports(seen, each.name) if not report.is_ready]
        if reports:
            pod, least = min(reports, key=lambda known: _share(known[1]))
            said.append(f"{each.name} in {pod.name}: {_progress(least)}")
    return "; ".join(said[:3])


def _progress(report: InputReport) -> str:
    if report.state == "fetching" and report.bytes is not None:
        whole = f" of {size(report.total_bytes)}" if report.total_bytes else ""
        words = f"{size(report.bytes)}{whole}"
    else:
        words = report.state
    return ", ".join(filter(None, (words, report.message)))


def is_fetching(status: TrainingJobStatus) -> bool:
    """Return whether a job between two rounds waits for its inputs."""
    between = status.state in {State.STARTING, State.RECOVERING} and not status.rendezvous.open
    return between and any(each.state != "ready" for each in status.inputs)


def difference(members: Iterable[tuple[Pod, Agent]]) -> str:
    """Return which members have fetched different revisions of an input; empty: all have the same."""
    known: dict[str, tuple[str, str]] = {}  # input -> revision, pod
    for pod, agent in members:
        for each in agent.inputs:
            revision, other = known.setdefault(each.name, (each.revision, pod.name))
            if revision != each.revision:
                what = "code" if each.name == REPORT else f"input {each.name}"
                return f"{other} has {what} at {revision[:12]}, {pod.name} at {each.revision[:12]}"
    return ""


def _reports(seen: Observed, name: str) -> list[tuple[Pod, InputReport]]:
    agents = ((pod, seen.view.agents.get(pod.uid)) for pod in seen.active.values())
    return [(pod, each) for pod, agent in agents if agent is not None for each in agent.inputs if each.name == name]
