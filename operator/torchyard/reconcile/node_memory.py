"""Nodes that failed jobs, and which of them new pods avoid: a function of past failures, the time and a half-life.

A failure that speaks against a node is a strike. `Reason.blames_node` is its weight, which halves every half-life.
Strikes are a set: a process that reads the statuses of all jobs finds those again that are not stored yet. A job avoids
a node at once for its own strikes, and for those of other jobs if there is more than one, or a certain one.

Avoiding is a preference: pods still go to a remembered node if no other one has capacity, so that no gang waits because
of it, however wrong a strike was.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from torchyard.api.reasons import Reason
from torchyard.api.status import Attempt, AvoidedNode
from torchyard.api.values import Time

MAX_AVOIDED = 16
MAX_STRIKES = 64
MAX_STRIKES_OF_NODE = 8
# A job counts its own strikes from the first one that is no mere kill; others count what was repeated or is certain.
OWN_SCORE, SHARED_SCORE = 0.25, 0.5
FORGOTTEN_HALF_LIVES = 5.0


class Strike(Struct, frozen=True, kw_only=True):
    """One failure that speaks against a node. `job`: namespace and name of the job; `time`: unix seconds."""

    node: str
    time: int
    job: str
    reason: Reason
    weight: float


class NodeMemory(Struct, frozen=True, kw_only=True):
    """What is known of nodes beyond one job.

    Attributes:
        strikes: of all jobs.
        cleared: by node, the time up to which its strikes do not count: it was repaired or created again; infinite: it
            does not exist.
        half_life: seconds; 0: jobs do not learn from each other, and their own strikes do not fade.
    """

    strikes: tuple[Strike, ...] = ()
    cleared: Mapping[str, float] = {}
    half_life: float = 0.0


def avoided_nodes(memory: NodeMemory, attempts: Sequence[Attempt], now: float) -> list[AvoidedNode]:
    """Return the nodes that new pods of a job avoid: those that failed the job itself first, then the worst ones.

    Args:
        memory: of all jobs.
        attempts: the past rounds of this job.
        now: unix seconds.
    """
    own = strikes_of("", attempts)
    of_job = _scores((msgspec.structs.replace(each, weight=each.reason.blames_node) for each in own), memory, now)
    of_all = _scores((*own, *memory.strikes), memory, now) if memory.half_life else {}
    chosen = [node for node in _worst(of_job) if of_job[node] > OWN_SCORE]
    chosen += [node for node in _worst(of_all) if of_all[node] > SHARED_SCORE and node not in chosen]
    return [_avoided(node, own, memory) for node in chosen[:MAX_AVOIDED]]


def remembered(memory: NodeMemory, now: float) -> list[str]:
    """Return the nodes that the pods of every job avoid, the worst first."""
    scores = _scores(memory.strikes, memory, now) if memory.half_life else {}
    return [node for node in _worst(scores) if scores[node] > SHARED_SCORE][:MAX_AVOIDED]


def strikes_of(job: str, attempts: Sequence[Attempt]) -> tuple[Strike, ...]:
    """Return the strikes of the past rounds of one job.

    A program or an image that fails wherever it runs says nothing about nodes to others: of kills, and of failures
    before the first step, the nodes that a job blames for the same share the weight.
    """
    blamed = [
        (attempt, attempt.cause.node, reason)
        for attempt in attempts
        if attempt.cause is not None
        and attempt.cause.node
        and (reason := Reason.of(attempt.cause.class_)) is not None
        and reason.blames_node
    ]
    nodes: dict[Reason, set[str]] = {}
    for _, node, reason in blamed:
        nodes.setdefault(reason, set()).add(node)
    strikes = []
    for attempt, node, reason in blamed:
        doubtful = reason is Reason.KILLED or attempt.end_step <= attempt.start_step
        weight = round(reason.blames_node / (len(nodes[reason]) if doubtful else 1), 3)
        time = int(attempt.end_time or attempt.start_time or 0.0)
        strikes.append(Strike(node=node, time=time, job=job, reason=reason, weight=weight))
    return tuple(strikes)


def merged(memory: NodeMemory, news: Iterable[Strike], now: float) -> NodeMemory:
    """Return the memory with further strikes; the same strike replaces its former weight. Bounded, the newest stay."""
    known = {(each.node, each.time, each.job): each for each in (*memory.strikes, *news)}
    oldest = now - FORGOTTEN_HALF_LIVES * memory.half_life
    strikes: list[Strike] = []
    of_node: dict[str, int] = {}
    for each in sorted(known.values(), key=lambda each: (-each.time, each.node, each.job)):
        if each.time > oldest and of_node.get(each.node, 0) < MAX_STRIKES_OF_NODE:
            of_node[each.node] = of_node.get(each.node, 0) + 1
            strikes.append(each)
    kept = tuple(strikes[:MAX_STRIKES])
    return memory if kept == memory.strikes else msgspec.structs.replace(memory, strikes=kept)


def _scores(strikes: Iterable[Strike], memory: NodeMemory, now: float) -> dict[str, float]:
    """Return the sum of the weights of each node's strikes, as they are worth now."""
    scores: dict[str, float] = {}
    for each in _distinct(strikes):
        if each.time > memory.cleared.get(each.node, 0.0):
            age = max(0.0, now - each.time)
            worth = each.weight * (0.5 ** (age / memory.half_life) if memory.half_life else 1.0)
            scores[each.node] = scores.get(each.node, 0.0) + worth
    return scores


def _distinct(strikes: Iterable[Strike]) -> Iterable[Strike]:
    """Return each strike once: those of this job may be among those of all jobs, under its name."""
    return {(each.node, each.time, each.reason): each for each in strikes}.values()


def _worst(scores: Mapping[str, float]) -> list[str]:
    return sorted(scores, key=lambda node: (-scores[node], node))


def _avoided(node: str, own: Sequence[Strike], memory: NodeMemory) -> AvoidedNode:
    since = memory.cleared.get(node, 0.0)
    strikes = [each for each in _distinct((*own, *memory.strikes)) if each.node == node and each.time > since]
    newest = max(strikes, key=lambda each: each.time)
    return AvoidedNode(node=node, reason=newest.reason, failures=len(strikes), time=Time.of(newest.time))
