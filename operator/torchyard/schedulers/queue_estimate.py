"""When a job that waits in a queue may start: an estimate from the forecasts of the jobs that hold the quota. Pure.

Jobs ahead in the queue take their part of what becomes free first, and are assumed to keep it. So the estimate is too
late where one of them ends soon or needs another flavor, and too early where the cluster cannot place what the quota
allows, or where jobs that are not TrainingJobs wait ahead: their needs are not known.
"""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal

from msgspec import Struct

from torchyard.schedulers.protocol import QueuePosition

Amounts = Mapping[str, Decimal]  # of quota: name of a resource -> cores, bytes, devices

EXACT = 99  # a place behind it is rounded up to two digits: in a long queue it changes all the time
SAME_SECONDS, SAME_SHARE = 60.0, 0.15  # an estimate that differs less from the last one replaces it not


class Holder(Struct, frozen=True, kw_only=True):
    """A job that holds quota. `ends`: unix seconds by its own forecast; None: it has none."""

    amounts: Amounts
    ends: float | None


class Waiting(Struct, frozen=True, kw_only=True):
    """A job in the queue. `position`: from 0, over the whole ClusterQueue."""

    uid: str
    position: int
    amounts: Amounts


class ClusterQueue(Struct, frozen=True, kw_only=True):
    """A queue of the cluster as far as it is known: the quota that nothing holds, who holds the rest, who waits."""

    free: Amounts
    holders: tuple[Holder, ...] = ()
    waiting: tuple[Waiting, ...] = ()


def queue_positions(queue: ClusterQueue, now: float, before: Mapping[str, QueuePosition]) -> dict[str, QueuePosition]:
    """Return the place of each waiting job, by its uid.

    Args:
        queue: with all TrainingJobs that hold or want its quota.
        now: unix seconds.
        before: the last answer: an estimate that has hardly changed stays, so that it costs no write.
    """
    found: dict[str, QueuePosition] = {}
    ordered = sorted(queue.waiting, key=lambda each: each.position)
    for index, each in enumerate(ordered):
        need = total((*(other.amounts for other in ordered[:index]), each.amounts))
        start = start_time(queue.holders, need, queue.free, now)
        place = QueuePosition(
            position=rounded(each.position + 1),
            uncounted=rounded(max(0, each.position - index)),
            start=None if start is None else float(math.ceil(start)),
        )
        found[each.uid] = _steady(place, before.get(each.uid), now)
    return found


def start_time(holders: Sequence[Holder], need: Amounts, free: Amounts, now: float) -> float | None:
    """Return when what is free covers the need, if jobs end as they forecast, unix seconds; None: not by forecasts.

    A resource that is neither free nor held is not limited by the queue.

    Args:
        holders: jobs that hold quota.
        need: of the job and of all jobs ahead of it.
        free: quota that nothing holds.
        now: unix seconds.
    """
    ending = sorted((each for each in holders if each.ends is not None), key=lambda each: each.ends or now)
    limited = {name for amounts in (free, *(each.amounts for each in holders)) for name in amounts}
    needed = {name: amount for name, amount in need.items() if name in limited}
    have = dict(free)
    start = now
    for holder in (None, *ending):
        if holder is not None:
            have = total((have, holder.amounts))
            start = max(now, holder.ends or now)
        if all(have.get(name, 0) >= amount for name, amount in needed.items()):
            return start
    return None


def total(parts: Sequence[Amounts]) -> dict[str, Decimal]:
    """Return the sum of several amounts."""
    sums: dict[str, Decimal] = {}
    for part in parts:
        for name, amount in part.items():
            sums[name] = sums.get(name, Decimal(0)) + amount
    return sums


def rounded(place: int) -> int:
    """Return a place in the queue, rounded up to two digits if it is far behind."""
    if place <= EXACT:
        return place
    unit = int(10 ** (len(str(place)) - 2))
    return -(-place // unit) * unit


def _steady(place: QueuePosition, before: QueuePosition | None, now: float) -> QueuePosition:
    if before is None or before.start is None or place.start is None:
        return place
    tolerance = max(SAME_SECONDS, SAME_SHARE * (place.start - now))
    moved = abs(place.start - before.start) > tolerance
    return place if moved else QueuePosition(position=place.position, uncounted=place.uncounted, start=before.start)
