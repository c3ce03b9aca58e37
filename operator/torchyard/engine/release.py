"""Release of partially scheduled gangs, so that two gangs never wait for capacity that the other one holds.

Kubernetes schedules pods one by one: of two gangs of eight, each may get four pods, and both would wait forever. After
`spec.scheduling.gangTimeout` without another scheduled pod, a gang deletes all its pods and is recreated after a pause.
Timeout and pause are randomised, so that one of two gangs gets the capacity.
"""

import zlib
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from torchyard.api.durations import seconds
from torchyard.api.figures import plural
from torchyard.api.reasons import Reason
from torchyard.api.states import State
from torchyard.api.status import TrainingJobStatus, with_reason
from torchyard.api.times import rfc3339
from torchyard.engine.gang import FUTILE, RELEASED, active_pods, pause_end
from torchyard.engine.view import Pod, View

# The first pause exceeds the time after which a scheduler retries an unschedulable pod (10 s). A gang with a shorter
# timeout than that gets a shorter pause.
SHORTEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 30.0, 120.0
# If the nodes can never hold the gang, only new nodes help: retried rarely.
LONGEST_FUTILE_PAUSE_SECONDS = 1800.0
SPREAD = 0.25  # share of the timeout by which the release may be delayed


class Shortage(Struct, frozen=True):
    """Why a part of the gang cannot be scheduled, and since when."""

    since: float
    reason: str
    message: str


def release_gang(view: View, status: TrainingJobStatus) -> tuple[TrainingJobStatus | None, float | None]:
    """Return the status of a gang that is to be released, or when to check again.

    A gang whose files would be lost with its pods is not released, nor one with `gang: none`.
    """
    pause = pause_end(view, status)
    if pause is not None:
        return None, pause
    held = active_pods(view, status).values()
    placed = [pod for pod in held if pod.node]
    lack = _shortage(view, held)
    saved = status.checkpoint is not None and not view.files_stay
    if view.job.spec.scheduling.gang == "none" or saved or not placed or lack is None:
        return None, None
    begun = max([view.since, lack.since, *(pod.placed or pod.created for pod in placed)])
    due = begun + _limit(view) * (1 + SPREAD * _chance(view, status))
    if view.now < due:
        return None, due
    limit = view.job.spec.scheduling.gang_timeout
    state = State.RECOVERING if status.state == State.RECOVERING else State.PENDING
    if lack.reason == FUTILE:
        return with_reason(_emptied(view, status, lack), state, FUTILE, lack.message), None
    why = f"{lack.reason}: {lack.message}"
    evidence = f"{len(placed)} of {plural(view.job.spec.nodes, 'pod')} for {limit}, {why}"
    return with_reason(_emptied(view, status, lack), state, RELEASED, evidence), None


def _emptied(view: View, status: TrainingJobStatus, lack: Shortage) -> TrainingJobStatus:
    """Return the status without members; the next pods have new names.

    The pause doubles each time in a row. `pendingTimeout` counts from the first release.
    """
    meet = status.rendezvous
    first = min(max(_limit(view), SHORTEST_PAUSE_SECONDS), FIRST_PAUSE_SECONDS)
    longest = LONGEST_FUTILE_PAUSE_SECONDS if lack.reason == FUTILE else LONGEST_PAUSE_SECONDS
    pause = min(first * 2.0 ** min(meet.releases, 8), longest)
    meet = replace(
        meet,
        members=[""] * len(meet.members),
        next_round_time=rfc3339(view.now + pause * (1 + _chance(view, status))),
        released=True,
        delayed=status.state == State.RECOVERING,
        releases=meet.releases + 1,
        waiting_since=meet.waiting_since or rfc3339(lack.since),
    )
    return replace(status, incarnation=status.incarnation + 1, rendezvous=meet)


def _shortage(view: View, held: Iterable[Pod]) -> Shortage | None:
    """Return why pods cannot be scheduled; pods that a gang scheduler holds back do not count."""
    short = [
        pod
        for pod in held
        if pod.phase == "Pending" and not pod.node and pod.reason not in {"", Reason.SCHEDULING_GATED}
    ]
    if short:
        oldest = min(short, key=lambda pod: (pod.created, pod.index))
        return Shortage(since=oldest.created, reason=oldest.reason, message=oldest.message)
    if view.refusal is not None and not view.refusal.permanent:
        return Shortage(since=view.refusal.since, reason=view.refusal.reason, message=view.refusal.message)
    return None


def _limit(view: View) -> float:
    return seconds(view.job.spec.scheduling.gang_timeout)


def _chance(view: View, status: TrainingJobStatus) -> float:
    """Return a number between 0 and 1 that stays the same while the gang has these pods."""
    return zlib.crc32(f"{view.job.metadata.uid}/{status.incarnation}".encode()) / 2**32
