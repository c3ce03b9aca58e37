"""What the soak holds a status against, and what a run that is over must not leave."""

import json
from collections.abc import Iterator
from typing import Any

from soak_faults import Expected, Scene
from soak_run import Run

MAX_STATUS_BYTES = 64 * 1024
MONOTONE = (
    ("round",),
    ("incarnation",),
    ("observedGeneration",),
    ("restarts", "total"),
    ("nodes", "lost"),
    ("checkpoint", "step"),
)
SCRATCH = (
    ".*.new",
    "*.tmp",
    ".*.tmp",
    ".job.yaml.*",
    ".status.json.*",
    ".step-*",
    ".round.lock.*",
    ".latest.*",
    ".run.json.*",
)


def differences(before: dict[str, Any], after: dict[str, Any], expected: Expected, scene: Scene) -> Iterator[str]:
    """What the status tells otherwise than it happened."""
    for path in MONOTONE:
        old, new = figure(before, *path), figure(after, *path)
        if new < old:
            yield f"{'.'.join(path)} fell from {old} to {new}"
    if (size := len(json.dumps(after, separators=(",", ":")).encode())) > MAX_STATUS_BYTES:
        yield f"the status has {size} bytes"
    if expected.chaos:
        yield from ungrounded_charges(before, after)
        return
    ended = [each for each in after["attempts"] if before["round"] <= each["round"] < after["round"]]
    wanted = int(bool(expected.reason))
    if len(ended) != wanted:
        told = [(each["round"], each.get("reason"), each.get("cause")) for each in ended]
        yield f"{len(ended)} rounds ended, not {wanted}: {told}"
    restarts = wanted if expected.counted else 0
    if (got := figure(after, "restarts", "total") - figure(before, "restarts", "total")) != restarts:
        yield f"restarts.total grew by {got}, not {restarts}"
    if (got := figure(after, "incarnation") - figure(before, "incarnation")) != expected.new_pods:
        yield f"incarnation grew by {got}, not {expected.new_pods}"
    if got := figure(after, "restarts", "counted") - figure(before, "restarts", "counted"):
        yield f"{got} restarts charged"
    if ended and expected.counted and (got := figure(after, "restarts", "noProgress")):
        yield f"{got} rounds in a row without progress"
    if ended and expected.reason:
        yield from wrong_cause(ended[0], expected, scene)


def ungrounded_charges(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Rounds that were charged although they saved a newer step."""
    for each in after["attempts"]:
        if each["round"] >= before["round"] and each.get("counted") and each.get("stepsGained", 0) > 0:
            yield f"round {each['round']} is charged, though it gained {each['stepsGained']} steps"


def wrong_cause(attempt: dict[str, Any], expected: Expected, scene: Scene) -> Iterator[str]:
    cause = attempt.get("cause") or {}
    if attempt["reason"] != expected.reason:
        yield f"the round ended with {attempt['reason']}, not {expected.reason} ({ {**cause, 'lines': []} })"
        return
    if attempt.get("stepsGained", 0) <= 0:
        yield f"round {attempt['round']} gained {attempt.get('stepsGained', 0)} steps"
    if not expected.ranks:
        return
    pods = {worker.rank: worker.pod for worker in scene.workers}
    if cause.get("rank") not in expected.ranks or cause.get("pod") not in {pods[rank] for rank in expected.ranks}:
        yield f"rank {cause.get('rank')} of {cause.get('pod')} is named, not {expected.ranks}"
    if cause.get("exitCode") != expected.code:
        yield f"exit code {cause.get('exitCode')} is reported, not {expected.code}"
    if expected.exception not in cause.get("exception", ""):
        yield f"{cause.get('exception')!r} is reported, not {expected.exception!r}"


def figure(status: dict[str, Any], *path: str) -> int:
    found: Any = status
    for name in path:
        found = found.get(name, {})
    return found if isinstance(found, int) else 0


def leftovers(run: Run) -> list[str]:
    """What a run that is over should not leave."""
    scratch = [path for pattern in SCRATCH for path in run.folder.rglob(pattern)]
    temporary = (path for path in run.scratch.iterdir() if not path.name.startswith("torchinductor_"))  # torch's cache
    return sorted({str(path.relative_to(run.home)) for path in (*scratch, *temporary)})
