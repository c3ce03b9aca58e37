"""A gang of which only a part finds room lets go of it, so that no two gangs wait for what the other one holds.

Kubernetes places pods one by one: two gangs of eight may get four pods in each, and both would wait for ever. After
`spec.scheduling.gangTimeout` without one more of its pods being placed, a gang deletes all of them and makes them anew
after a pause. When exactly, and for how long, is a matter of chance, so that of two gangs one finds room meanwhile.
"""

import zlib
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from torchyard.api.durations import seconds
from torchyard.api.figures import plural
from torchyard.api.reasons import Reason
from torchyard.api.status import State, TrainingJobStatus, with_reason
from torchyard.api.times import rfc3339
from torchyard.engine.gang import FUTILE, RELEASED, pause_end, seats
from torchyard.engine.view import Pod, View

# The first one is longer than a scheduler takes to look again at a pod that it found no room for: 10 s. A gang that
# lets go sooner than that is in a hurry.
SHORTEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 30.0, 120.0
# Where the nodes cannot hold the gang at all, only new nodes help: tried again seldom.
LONGEST_FUTILE_PAUSE_SECONDS = 1800.0
SPREAD = 0.25  # of the time limit: how much later than it at most


class Lack(Struct, frozen=True):
    """Why a part of the gang has no room, and since when."""

    since: float
    reason: str
    message: str


def let_go(view: View, status: TrainingJobStatus) -> tuple[TrainingJobStatus | None, float | None]:
    """The status of a gang that lets go of the part that found room, if it held that for too long; else when to look.

    Not where its files would go with its pods, nor where nobody is to place all or none of it.
    """
    pause = pause_end(view, status)
    if pause is not None:
        return None, pause
    held = seats(view, status).values()
    placed = [pod for pod in held if pod.node]
    lack = _lack(view, held)
    saved = status.checkpoint is not None and not view.files_stay
    if view.job.spec.scheduling.gang == "none" or saved or not placed or lack is None:
        return None, None
    begun = max([view.since, lack.since, *(pod.placed or pod.created for pod in placed)])
    due = begun + _limit(view) * (1 + SPREAD * _chance(view, status))
    if view.now < due:
        return None, due
    limit = view.job.spec.scheduling.gang_timeout
    state: State = "Recovering" if status.state == "Recovering" else "Pending"
    if lack.reason == FUTILE:
        return with_reason(_emptied(view, status, lack), state, FUTILE, lack.message), None
    why = f"{lack.reason}: {lack.message}"
    evidence = f"{len(placed)} of {plural(view.job.spec.nodes, 'pod')} for {limit}, {why}"
    return with_reason(_emptied(view, status, lack), state, RELEASED, evidence), None


def _emptied(view: View, status: TrainingJobStatus, lack: Lack) -> TrainingJobStatus:
    """Without members; the next pods have new names.

    Each time in a row the pause is twice as long. How long pods may wait counts from the first time on.
    """
    meet = status.rendezvous
    first = min(max(_limit(view), SHORTEST_PAUSE_SECONDS), FIRST_PAUSE_SECONDS)
    longest = LONGEST_FUTILE_PAUSE_SECONDS if lack.reason == FUTILE else LONGEST_PAUSE_SECONDS
    pause = min(first * 2.0 ** min(meet.releases, 8), longest)
    meet = replace(
        meet,
        members=[""] * len(meet.members),
        next_round_time=rfc3339(view.now + pause * (1 + _chance(view, status))),
        releases=meet.releases + 1,
        waiting_since=meet.waiting_since or rfc3339(lack.since),
    )
    return replace(status, incarnation=status.incarnation + 1, rendezvous=meet)


def _lack(view: View, held: Iterable[Pod]) -> Lack | None:
    """What the gang lacks, if it lacks room. A pod that a gang scheduler holds back waits for nobody's room yet."""
    short = [
        pod
        for pod in held
        if pod.phase == "Pending" and not pod.node and pod.reason not in {"", Reason.SCHEDULING_GATED}
    ]
    if short:
        oldest = min(short, key=lambda pod: (pod.created, pod.index))
        return Lack(since=oldest.created, reason=oldest.reason, message=oldest.message)
    if view.refusal is not None and not view.refusal.permanent:
        return Lack(since=view.refusal.since, reason=view.refusal.reason, message=view.refusal.message)
    return None


def _limit(view: View) -> float:
    return seconds(view.job.spec.scheduling.gang_timeout)


def _chance(view: View, status: TrainingJobStatus) -> float:
    """Between 0 and 1, the same for as long as the gang has these pods."""
    return zlib.crc32(f"{view.job.metadata.uid}/{status.incarnation}".encode()) / 2**32
