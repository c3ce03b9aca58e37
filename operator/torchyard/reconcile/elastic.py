"""The size of a gang that may differ from `spec.nodes`: elastic gangs, and spares that take the place of lost pods.

The members of a round are pods that are ready, in the order of their indices; other pods wait. Three sizes:

- `spec.nodes` members are what the gang wants; a scheduler with quota may allow fewer (`admitted_nodes`);
- an elastic gang trains with fewer once it has waited, down to `spec.elastic.minNodes`;
- `spec.spares` further pods are ready, and take part in the next round if members are missing.

A gang grows only if that pays: it saves and starts again, which costs what its past starts cost.
"""

import statistics

from msgspec import Struct

from torchyard.api.launch import fewest_nodes
from torchyard.api.status import State, TrainingJobStatus
from torchyard.api.values import plural, since, span
from torchyard.reconcile.observed import Agent, Observed, Pod, View, admitted_nodes

# The time that a larger gang saves has to be this many times what the restart costs.
WORTH = 2.0
# Where the time left is unknown: a restart may cost at most one in so many seconds of training.
UNKNOWN_WORTH = 10.0
# What a restart costs as long as the job has had none.
FIRST_COST_SECONDS = 60.0


class Resize(Struct, frozen=True, kw_only=True):
    """A decision about the size of the open round.

    Attributes:
        sentence: why the gang changes its size now; empty: it does not.
        due: when to decide again, if nothing else happens; None: only then.
    """

    sentence: str = ""
    due: float | None = None


NONE = Resize()


def next_members(view: View, ready: list[tuple[Pod, Agent]]) -> list[tuple[Pod, Agent]]:
    """Return the members of the next round in rank order: former members come first, since they are warm."""
    former = set(view.job.status.rendezvous.members)
    chosen = sorted(ready, key=lambda each: (each[0].uid not in former, each[0].index))[: admitted_nodes(view)]
    return sorted(chosen, key=lambda each: each[0].index)


def smaller_due(view: View, status: TrainingJobStatus, ready: list[tuple[Pod, Agent]]) -> float | None:
    """Return when a round may open without the members that are missing; None: never with so few."""
    elastic = view.job.spec.elastic
    least = fewest_nodes(view.job.spec)
    if elastic is None or len(ready) < least:
        return None
    recovers = status.state == State.RECOVERING
    ended = since(status.attempts[-1].end_time, 0.0) if recovers and status.attempts else 0.0
    # A start waits from the moment in which it could have begun.
    running = sorted(pod.started or pod.created for pod, _ in ready)[least - 1]
    return max(ended, running) + (elastic.patience if recovers else elastic.wait)


def runs_nothing(view: View, status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether a pod beside the members of the next round certainly has no workers."""
    agent = view.agents.get(pod.uid)
    if agent is None:
        return pod.phase == "Pending" and pod.uid not in status.rendezvous.members
    return agent.connected and agent.state == "ready" and agent.current


def resize(seen: Observed, status: TrainingJobStatus) -> Resize:
    """Decide whether an open round that makes steps saves and stops, so that the next one has another size."""
    view, spec = seen.view, seen.view.job.spec
    members = len(status.rendezvous.members)
    if spec.elastic is None or status.state != State.RUNNING or not status.attempts:
        return Resize()
    if members > spec.nodes:
        shrinks = _may_stop(seen, status, forced=True)
        return Resize(sentence=f"from {members} to {plural(spec.nodes, 'node')}, as spec.nodes says" if shrinks else "")
    size = min(admitted_nodes(view), members + sum(_waits(view, status, pod) for pod in seen.active.values()))
    if size <= members:
        return Resize()
    cooled = since(status.attempts[-1].start_time, view.now) + spec.elastic.cooldown
    if view.now < cooled:
        return Resize(due=cooled)
    worth, due = _worth(view, status, members, size)
    if not worth or not _may_stop(seen, status, forced=False):
        return Resize(due=due)
    return Resize(sentence=f"from {members} to {plural(size, 'node')}: {worth}")


def may_replace(seen: Observed, status: TrainingJobStatus) -> bool:
    """Return whether a spare is ready to take a place, and stopping now repeats no steps."""
    spare = any(_waits(seen.view, status, pod) for pod in seen.active.values())
    return spare and _may_stop(seen, status, forced=False)


def _waits(view: View, status: TrainingJobStatus, pod: Pod) -> bool:
    """Return whether a pod is ready to become a member."""
    agent = view.agents.get(pod.uid)
    return pod.uid not in status.rendezvous.members and agent is not None and runs_nothing(view, status, pod)


def _may_stop(seen: Observed, status: TrainingJobStatus, *, forced: bool) -> bool:
    """Return whether stopping now repeats no steps.

    A trainer of ours saves when it is asked to. Another program may not: it is stopped when it has just saved. One
    that never saves is only stopped if the user asks for the size.
    """
    view = seen.view
    if view.job.spec.trainer is not None and view.job.spec.checkpoint.on_preempt:
        return True
    saved, before = status.checkpoint, view.job.status.checkpoint
    if saved is None:
        return forced
    return before is None or saved.step > before.step or saved.steps_at_risk == 0


def _worth(view: View, status: TrainingJobStatus, members: int, size: int) -> tuple[str, float | None]:
    """Return why a larger gang pays for the restart, else an empty text and when it may."""
    cost = restart_cost(status)
    left = status.progress.eta_seconds
    if left is None:
        due = since(status.attempts[-1].start_time, view.now) + UNKNOWN_WORTH * cost
        return (f"the restart costs about {span(cost)}", None) if view.now >= due else ("", due)
    then = left * members / size
    if left - then < WORTH * cost:
        return "", None
    return f"{span(left)} left become about {span(then)}, and the restart costs about {span(cost)}", None


def restart_cost(status: TrainingJobStatus) -> float:
    """Return the seconds without steps that a restart of this job costs, from its own history."""
    past = [attempt.seconds_lost for attempt in status.attempts if attempt.seconds_lost]
    if past:
        return statistics.median(past)
    spent = status.goodput.seconds if status.goodput is not None else {}
    # Goodput sums all rounds. A round after a change of size has no `seconds_lost`, which is counted from a failure.
    starts = spent.get("start", 0.0) + spent.get("restore", 0.0)
    return starts / max(1, status.round) or FIRST_COST_SECONDS
