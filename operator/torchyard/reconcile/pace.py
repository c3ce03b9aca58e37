"""Slow ranks, and gangs that are slower than they were (pure).

Ranks of a gang wait for each other, so that all of them make steps equally fast. What differs is the time that each
one computes: the hooks measure it without the waits (agent: `telemetry/pace.py`), over half a minute of steps.

- A rank is slow if three quarters of its steps take longer than the median of the others by 30 %, by 5 ms and by five
  robust standard deviations (1.4826 times the median absolute deviation) of the others.
- A gang is slow if its steps have taken 1.5 times their shortest so far, with as many ranks, for a minute.

What is named keeps its figures until it changes much: each status and event would differ otherwise.
"""

import statistics
from collections.abc import Sequence

from msgspec.structs import replace

from torchyard.api.reasons import Reason
from torchyard.api.status import Cause, Pace, Straggler, TrainingJobStatus
from torchyard.api.values import Time, plural, span
from torchyard.reconcile.observed import Observed, RankReport

SLOW_SHARE, SLOW_SECONDS, SLOW_DEVIATIONS = 0.3, 0.005, 5.0
# A named rank stays named until it is this close to the others, and its figures until they differ by this much.
RECOVERED_SHARE, CHANGED_SHARE = 0.15, 0.25
MOST_STRAGGLERS = 8
GANG_TIMES, GANG_RECOVERED_TIMES, GANG_SECONDS = 1.5, 1.2, 60.0
_OF_NORMAL = 1.4826


def with_pace(seen: Observed, before: Pace | None) -> Pace | None:
    """Return the pace of the open round; the last one if no rank reports one."""
    if not seen.view.job.spec.health.straggler:
        return None
    timed = [report for report in seen.reports if report.step_seconds and report.step_seconds > 0]
    if not timed or len(timed) < len(seen.reports):
        return replace(before, stragglers=[]) if before is not None and before.stragglers else before
    step = statistics.median(report.step_seconds or 0.0 for report in timed)
    known = before if before is not None and before.ranks == len(timed) else Pace(usual_step_seconds=step)
    usual = min(step, known.usual_step_seconds or step)
    computed = _computed(timed)
    slow = stragglers(seen, timed, before.stragglers if before is not None else [])
    return _with_gang(
        Pace(
            ranks=len(timed),
            step_seconds=_short(step),
            compute_seconds=_short(statistics.median(computed)) if computed else None,
            usual_step_seconds=_short(usual),
            stragglers=slow,
        ),
        known,
        seen.view.now,
    )


def stragglers(seen: Observed, reports: Sequence[RankReport], before: Sequence[Straggler]) -> list[Straggler]:
    """Return the slow ranks, the slowest first; none if a rank does not know how long it waits."""
    computed = _computed(reports)
    if len(computed) < 2:
        return []
    named = {(each.rank, each.pod): each for each in before}
    slow: list[Straggler] = []
    for place, report in enumerate(reports):
        others = [*computed[:place], *computed[place + 1 :]]
        usual = statistics.median(others)
        found = _straggler(seen, report, usual)
        former = named.get((found.rank, found.pod))
        if former is None and (report.compute_low_seconds or 0.0) >= _limit(others, usual):
            slow.append(found)
        elif former is not None and computed[place] >= (1.0 + RECOVERED_SHARE) * usual:
            changed = abs(found.ratio / former.ratio - 1.0) > CHANGED_SHARE
            slow.append(found if changed else former)
    return sorted(slow, key=lambda each: (-each.ratio, each.rank))[:MOST_STRAGGLERS]


def evidence(pace: Pace | None) -> tuple[tuple[Reason, str], ...]:
    """Return reasons and evidence of what to warn of."""
    if pace is None:
        return ()
    slow = tuple((Reason.STRAGGLER, described(each)) for each in pace.stragglers)
    if slow or not pace.slower:
        return slow
    now = pace.slower * (pace.usual_step_seconds or 0.0)
    ranks = f"all {plural(pace.ranks, 'rank')}" if pace.ranks > 1 else "the rank"
    text = (
        f"{pace.slower:.1f}x of what they took before in this job: {milliseconds(now)} instead of "
        f"{milliseconds(pace.usual_step_seconds or 0.0)}, for {span(GANG_SECONDS)}, on {ranks}"
    )
    return ((Reason.SLOWER_THAN_BASELINE, text),)


def with_cause(status: TrainingJobStatus, slow: Straggler) -> TrainingJobStatus:
    """Return the status with the slow rank as the cause for which the open round ends."""
    cause = Cause(rank=slow.rank, pod=slow.pod, node=slow.node, class_=Reason.STRAGGLER)
    return replace(status, attempts=[*status.attempts[:-1], replace(status.attempts[-1], cause=cause)])


def described(slow: Straggler) -> str:
    """Return one slow rank as a person names it."""
    where = f" on node {slow.node}" if slow.node else ""
    device = f" ({slow.device})" if slow.device and slow.device != "cpu" else ""
    usual = milliseconds(slow.usual_seconds)
    return f"rank {slow.rank}{where}{device}: {slow.ratio:.1f}x the median of {usual} for {plural(slow.steps, 'step')}"


def milliseconds(seconds: float) -> str:
    """Return a duration of a step with three digits."""
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"


def _computed(reports: Sequence[RankReport]) -> list[float]:
    """Return the compute time of each rank; none if one of them does not know it."""
    known = [report.compute_seconds for report in reports if report.compute_seconds is not None]
    return known if len(known) == len(reports) else []


def _limit(others: Sequence[float], usual: float) -> float:
    deviation = _OF_NORMAL * statistics.median(abs(each - usual) for each in others)
    return usual + max(SLOW_SHARE * usual, SLOW_SECONDS, SLOW_DEVIATIONS * deviation)


def _straggler(seen: Observed, report: RankReport, usual: float) -> Straggler:
    agents = ((uid, seen.view.agents.get(uid)) for uid in seen.status.rendezvous.members)
    uid = next((uid for uid, agent in agents if agent is not None and report in agent.reports), "")
    pod = seen.pods.get(uid)
    return Straggler(
        rank=report.rank,
        pod=pod.name if pod is not None else "",
        node=pod.node if pod is not None else "",
        device=report.device,
        ratio=round((report.compute_seconds or 0.0) / max(usual, 1e-9), 2),
        usual_seconds=_short(usual),
        steps=report.window_steps or 0,
    )


def _with_gang(pace: Pace, before: Pace, now: float) -> Pace:
    """Return the pace with how much slower the whole gang is than it was, once that has lasted."""
    times = (pace.step_seconds or 0.0) / max(pace.usual_step_seconds or 0.0, 1e-9)
    if times < (GANG_RECOVERED_TIMES if before.slower else GANG_TIMES):
        return pace
    since = before.slower_since or Time.of(now)
    changed = before.slower and abs(times / before.slower - 1.0) > CHANGED_SHARE
    lasting = now - since >= GANG_SECONDS
    slower = before.slower if before.slower and not changed else round(times, 2) if lasting else None
    return replace(pace, slower_since=since, slower=slower)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def replaceable(status: TrainingJobStatus) -> Straggler | None:
    """Return the slowest rank, if no earlier round was ended for the same rank: then its work is what is slow."""
    slow = status.pace.stragglers[0] if status.pace is not None and status.pace.stragglers else None
    if slow is None:
        return None
    former = (each.cause for each in status.attempts if each.reason == Reason.REPLACING_STRAGGLER)
    return None if any(cause is not None and cause.rank == slow.rank for cause in former) else slow
