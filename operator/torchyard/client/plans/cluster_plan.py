"""The plan of a job on a cluster, as a document and in words. Pure."""

import json
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from torchyard.api.formatting import clean, clip
from torchyard.api.profiles.effective import filled_in, with_profile
from torchyard.api.reasons import say
from torchyard.api.resource import TrainingJob
from torchyard.api.values import plural, span
from torchyard.client.plans.changes import Change, Existing, existing
from torchyard.client.plans.cluster_view import ClusterView
from torchyard.client.plans.fit import Fit, Holder, fit, holders
from torchyard.client.plans.quota import Limit, Queue, of_cluster_queue, of_namespace
from torchyard.reconcile.profile import ProfileVerdict

MAX_VALUE = 40


class ProfilePlan(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a profile means for a job.

    Attributes:
        name: of the profile.
        sets: fields of the job, relative to `spec`, that it fills in or adds to, with their values.
        problem: why the job cannot run with it; empty: it can, or the profile could not be read.
    """

    name: str
    sets: dict[str, Any]
    problem: str


class ClusterPlan(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a cluster would do with a job.

    Attributes:
        job: its name.
        where: namespace and cluster.
        profile: what the profile of the job sets and whether its limits are kept; None: it names none.
        fit: whether the nodes have capacity for it.
        holders: of GPUs, the next to end first.
        queue: of the job; None: it names none, or it could not be read.
        limits: of the ClusterQueue and of ResourceQuotas that concern the job.
        claimed_gpus: GPUs in the claims of each pod; None: there are no claims, or templates do not tell.
        existing: the job of this name; None: there is none.
        rejection: why the API server would reject the object; empty: it accepts it, or was not asked.
        accepted: whether it accepts the object; None: it was not asked.
        notes: what could not be read, and why.
    """

    job: str
    where: str
    profile: ProfilePlan | None
    fit: Fit
    holders: list[Holder]
    queue: Queue | None
    limits: list[Limit]
    claimed_gpus: int | None
    existing: Existing | None
    accepted: bool | None
    rejection: str
    notes: list[str]

    @property
    def possible(self) -> bool:
        """Whether the job can run as it is, now or later."""
        changes = self.existing is None or self.existing.possible
        outside = self.profile is not None and self.profile.problem
        never = outside or self.rejection or any(map(_never, self.limits))
        return self.fit.ever is not False and not never and changes

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def cluster_plan(job: TrainingJob, view: ClusterView, now: float) -> ClusterPlan:
    """Return the plan of a job.

    Args:
        job: to be submitted.
        view: what could be read of the cluster.
        now: unix seconds.
    """
    queue, known, asked = view.queue, view.cluster_queue, job
    job = with_profile(job, view.profile.pinned)
    limits = of_cluster_queue(job, queue.cluster_queue, known) if queue is not None and known is not None else []
    return ClusterPlan(
        job=job.metadata.name,
        where=view.where,
        profile=_profile(asked, view.profile),
        fit=fit(job, view.nodes, view.pods),
        holders=holders(view.pods if view.pods is not None else view.own_pods, view.jobs, now),
        queue=queue,
        limits=[*limits, *of_namespace(job, view.quotas)],
        claimed_gpus=view.claimed_gpus,
        existing=existing(asked, view.existing),
        accepted=view.accepted,
        rejection=view.rejection,
        notes=list(view.unread),
    )


def _profile(job: TrainingJob, verdict: ProfileVerdict) -> ProfilePlan | None:
    if job.spec.profile is None:
        return None
    sets = filled_in(job.spec, verdict.pinned.defaults) if verdict.pinned is not None else {}
    problem = say(verdict.reason, verdict.evidence) if verdict.reason else ""
    return ProfilePlan(name=job.spec.profile, sets=sets, problem=problem)


def _never(limit: Limit) -> bool:
    # A ClusterQueue may borrow from its cohort: only what a namespace is allowed is final.
    return limit.never and limit.source.startswith("ResourceQuota")


def _lines(plan: ClusterPlan) -> Iterator[str]:
    yield f"{plan.job} in {plan.where}"
    for name, lines in _parts(plan):
        for index, line in enumerate(lines):
            yield f"  {name if not index else '':<10}{clean(line)}"


def _parts(plan: ClusterPlan) -> Iterator[tuple[str, list[str]]]:
    if plan.profile is not None:
        sets = [f"sets {field}: {_value(value)}" for field, value in plan.profile.sets.items()]
        yield "profile", [plan.profile.name, *sets, *filter(None, [plan.profile.problem])]
    yield "fits now?", [plan.fit.sentence]
    if plan.claimed_gpus is not None:
        yield "claims", [f"{plural(plan.claimed_gpus, 'GPU')} in each pod; free devices of nodes are not counted"]
    yield "GPUs", [_holder(each) for each in plan.holders] or ["no pod that could be read holds one"]
    if plan.queue is not None:
        waiting = plan.queue.waiting
        rest = "" if waiting is None else f", {plural(waiting, 'Workload')} {'waits' if waiting == 1 else 'wait'} in it"
        yield "queue", [f"{plan.queue.name}, ClusterQueue {plan.queue.cluster_queue}{rest}"]
    yield "quota", [str(each) for each in plan.limits]
    yield "job", _existing(plan)
    yield "object", [plan.rejection or "the API server accepts it (dry run)"] if plan.accepted is not None else []
    yield "not read", plan.notes


def _holder(each: Holder) -> str:
    ends = "no forecast" if each.eta_seconds is None else f"ends in {span(each.eta_seconds)} by its forecast"
    what = f"{each.kind}, {each.state}" if each.state else each.kind
    return f"{plural(each.gpus, 'GPU')}: {each.namespace}/{each.name} ({what}), {ends}"


def _existing(plan: ClusterPlan) -> list[str]:
    there = plan.existing
    if there is None:
        return ["new: there is none of this name"]
    state = there.state or "not yet looked at"
    if not there.changes:
        return [f"exists and is {state}; this file changes nothing"]
    return [f"exists and is {state}; this file changes:", *map(_change, there.changes), _consequence(plan.job, there)]


def _consequence(name: str, there: Existing) -> str:
    if not there.possible:
        return "a part of it cannot be changed: submit it under another name"
    if there.restarts:
        saved = there.checkpoint_step
        where = "the beginning: it has no checkpoint" if saved is None else f"its checkpoint, step {saved} or later"
        steps = f"`torchyard suspend {name}`, change it, `torchyard resume {name}`"
        return f"this restarts it from {where}: {steps}"
    if any(each.effect == "suspend first" for each in there.changes):
        return f"it is at rest: change it, then `torchyard resume {name}`"
    return "this restarts nothing"


def _change(each: Change) -> str:
    return f"{each.field}: {_value(each.before)} -> {_value(each.after)} ({each.effect})"


def _value(value: Any) -> str:
    return "not set" if value is None else clip(json.dumps(value, ensure_ascii=False), MAX_VALUE)
