"""`plan(view)`: from observations of one job to actions.

Pure and total: no I/O, no clock, no randomness, and a result for every combination of observations. Everything else in
this folder is a part of it or executes it. Actions are ordered: the status first (a round and an incarnation are
persisted before an agent or a pod knows of them), then commands, deletions and creations, events. Only a new job need
not wait for its first status: its gang follows from what is persisted with the job itself.

The conditions follow from the rest of the status. All are set on the first visit; a transition time changes only with
the status of its condition. `Ready`, `Reconciling` and `Stalled` follow the rules of kstatus, which `helm --wait`, Flux
and others apply to any resource: at most one of `Reconciling` and `Stalled` is true; a failed job stays stalled; a job
that trains, has succeeded, or is suspended as requested is ready.
"""

import math
from typing import Literal

from msgspec.structs import replace

from torchyard.api.exit_codes import ExitCode
from torchyard.api.names import JOB_LABEL
from torchyard.api.reasons import Reason, say
from torchyard.api.status import Condition, State, Throughput, TrainingJobStatus, bounded, is_preempted, with_reason
from torchyard.api.values import Time, since
from torchyard.reconcile import progress, rounds, scheduling
from torchyard.reconcile.actions import (
    Action,
    CommandAgent,
    CreatePod,
    DeleteJob,
    DeletePod,
    EmitEvent,
    Plan,
    WriteStatus,
)
from torchyard.reconcile.code import same_pod
from torchyard.reconcile.failures import with_pod_events
from torchyard.reconcile.gang import empty_gang, keep_gang, kept_pod, leftovers
from torchyard.reconcile.observed import Observed, Pod, View, admission, node_loss_due, observe, with_pod_agents
from torchyard.reconcile.profile import with_pinned
from torchyard.reconcile.progress import with_figures
from torchyard.reconcile.transitions import exit_code, next_transition

NEW_SECONDS = 10.0
YIELD_SECONDS = 30.0
MAX_MESSAGE = 1024
# Conditions that repeat the message of the status.
OWN_WORDS = frozenset({"Admitted", "Ready", "Reconciling", "Progressing", "Failed", "Stalled"})
EXPORTS = "export/"  # prefix of exports in a trainer's report
COLLECTORS = frozenset({"orphan", "foregroundDeletion"})  # finalizers of the garbage collector


def plan(view: View) -> Plan:
    """Return the actions for a view. Once a plan has taken effect, an unchanged view has an empty plan."""
    if view.job.spec.managed_by is not None and view.job.spec.is_delegated:
        return Plan()
    if view.job.metadata.deletion_timestamp is not None:
        return Plan(actions=_held(view))
    if view.agentless:
        view = with_pod_agents(view)
    before = view.job.status
    if before.state.terminal:
        return _finished(view, before)
    seen = observe(view, before)
    decided = next_transition(seen, progress.advance(view, with_figures(seen, before)))
    status = replace(decided.status, observed_generation=max(before.observed_generation, view.job.metadata.generation))
    kept = None if status.state.terminal else kept_pod(view, status)  # the pods of a finished job stay anyway
    status = _beside_the_transition(view, status if status.kept_pod == kept else replace(status, kept_pod=kept))
    due = [*decided.due, *node_loss_due(view), *((kept.until,) if kept is not None and kept.until else ())]
    deletes: tuple[DeletePod, ...] = ()
    creates: tuple[CreatePod, ...] = ()
    if status.state.terminal:
        commands = _exits(view, exit_code(status))
        due.append(view.now + 1.0)
    elif scheduling.pause_reason(view) and (not status.rendezvous.open or view.agentless):
        commands = _exits(view, ExitCode.PREEMPTED)
        why = "the job is suspended" if view.job.spec.suspend else "its scheduler takes back what it gave"
        deletes = empty_gang(view, grace_seconds=view.job.spec.grace_period, why=why, kept=kept)
    else:
        seen_after = seen.after(status)
        if not seen_after.is_complete:
            # A round that is open while the job is suspended only saves: a missing spare has no use.
            may_create = admission(view).pods == "create" and not view.job.spec.suspend
            changes = scheduling.pod_changes(view) if may_create else None
            gang = keep_gang(seen_after, may_create=may_create, changes=changes)
            status, deletes, creates = gang.status, gang.deletes, gang.creates
            due += [gang.due] if gang.due is not None else []
        ends = status.state == State.SUSPENDING or status.reason in scheduling.CHANGES
        saving = status.rendezvous.open and ends
        commands = rounds.save_commands(view, status) if saving else rounds.commands(view, status) if view.pods else ()
    if status.state.at_rest:
        status = replace(status, nodes=replace(status.nodes, ready=0))
    status = scheduling.with_gang(seen, status)
    if view.job.spec.elastic is not None and not status.selector:
        status = replace(status, selector=f"{JOB_LABEL}={view.job.metadata.name}")
    status = bounded(with_conditions(status, view.now, generation=status.observed_generation))
    write, news, events = (
        _write(before, status),
        _changed_commands(view, commands),
        (*decided.events, *_edited(view), *_warned(seen, before, status)),
    )
    objects = scheduling.changes(view, status)
    due += [each for each in (scheduling.retry_due(view, status), scheduling.again(view, status)) if each is not None]
    alone = not deletes and not news and not objects
    first = alone and _is_first_gang(view, status, creates)
    if alone and (first or not creates) and not events and _only_waits(view, status):
        write = tuple(replace(each, yields_until=view.since + YIELD_SECONDS) for each in write)
    if first:
        actions: tuple[Action, ...] = (*creates, *write, *events)
    else:
        actions = (*write, *news, *deletes, *objects, *creates, *events)
    return Plan(actions=actions, requeue_after=_requeue(view, due), pods_first=first)


def _held(view: View) -> tuple[Action, ...]:
    """Return the actions for a job that is being deleted: usually none, since the garbage collector deletes its pods.

    If a finalizer of another controller keeps the object, its pods would continue to hold GPUs: they are deleted here,
    and the status names the finalizer. A finished job keeps its outcome.
    """
    finalizers = view.job.metadata.finalizers
    if not finalizers or COLLECTORS & set(finalizers):
        return ()
    deletes = empty_gang(view, grace_seconds=view.job.spec.grace_period, why="the job is being deleted")
    before = view.job.status
    if before.state.terminal:
        return deletes
    generation = max(before.observed_generation, view.job.metadata.generation)
    held = with_reason(
        with_figures(observe(view, before), before),
        State.TERMINATING,
        Reason.TERMINATING,
        ", ".join(sorted(finalizers)),
    )
    held = replace(
        held,
        observed_generation=generation,
        progress=replace(held.progress, eta_seconds=None),
        throughput=Throughput(),
    )
    return (*_write(before, bounded(with_conditions(held, view.now, generation=generation))), *deletes)


def _is_first_gang(view: View, status: TrainingJobStatus, creates: tuple[CreatePod, ...]) -> bool:
    """Return whether these are the first pods of a new job, whose names every process would choose.

    An older job that looks new may have a status that this process has not seen: the write's precondition will fail. A
    job created since this process leads has no other history. A refusal of the cluster is reported before a retry.
    """
    before = view.job.status
    created = since(view.job.metadata.creation_timestamp, -math.inf)
    new = abs(view.now - created) < NEW_SECONDS or created > view.term + NEW_SECONDS
    first = not before.state and status.incarnation == before.incarnation and status.profile == before.profile
    return bool(creates) and new and first and not view.refusal


def _only_waits(view: View, status: TrainingJobStatus) -> bool:
    """Return whether this is a job's first status and only reports what the job waits for.

    A clock that was set back must not delay it further.
    """
    first = not view.job.status.state and view.since <= view.now
    return first and status.reason in {Reason.WAITING_FOR_PODS, Reason.WAITING_FOR_AGENTS, Reason.AGENT_SILENT}


def _beside_the_transition(view: View, status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with the events of lost pods and the profile; most jobs have neither."""
    if any(pod.events for pod in view.pods):
        status = with_pod_events(view, status)
    if view.job.spec.profile is not None or status.profile is not None:
        status = with_pinned(status, view.profile, view.job.spec.profile)
    return status


def _finished(view: View, status: TrainingJobStatus) -> Plan:
    """Return the actions for a finished job: agents exit, remaining pods are deleted, the TTL runs."""
    completed = since(status.completion_time, view.now)
    deletes, due = leftovers(view, completed)
    explained = with_pod_events(view, status)
    acknowledged = _acknowledge(view, explained, quiet=not deletes)
    news = _write(status, bounded(explained)) if explained is not status else ()
    actions: list[Action] = [
        *(acknowledged or news),
        *_changed_commands(view, _exits(view, exit_code(status))),
        *deletes,
        *scheduling.changes(view, status),
    ]
    times = [each for each in (due, scheduling.retry_due(view, status)) if each is not None]
    if view.job.spec.ttl_after_finished is not None:
        expiry = completed + view.job.spec.ttl_after_finished
        if view.now >= expiry:
            actions.append(DeleteJob(uid=view.job.metadata.uid))
        else:
            times.append(expiry)
    return Plan(actions=tuple(actions), requeue_after=_requeue(view, times))


def _acknowledge(view: View, status: TrainingJobStatus, *, quiet: bool) -> tuple[WriteStatus, ...]:
    """Acknowledge an edit of a finished job, so that clients that compare generations do not wait forever.

    `Stalled` is cleared once nothing is left to do (`quiet`).
    """
    generation = view.job.metadata.generation
    seen = with_conditions(replace(status, observed_generation=generation), view.now, generation=generation)
    corrected = quiet and _stalls(seen) != _stalls(status)
    if status.observed_generation >= generation and not corrected:
        return ()
    return (WriteStatus(status=bounded(seen), urgent=True),)


def _stalls(status: TrainingJobStatus) -> bool:
    return any((each.type, each.status) == ("Stalled", "True") for each in status.conditions)


def _exits(view: View, code: int) -> tuple[CommandAgent, ...]:
    return tuple(
        CommandAgent(pod_uid=pod.uid, verb="exit", code=code)
        for pod in sorted(view.pods, key=lambda pod: (pod.index, pod.uid))
        if pod.alive
    )


def _changed_commands(view: View, wished: tuple[CommandAgent, ...]) -> tuple[CommandAgent, ...]:
    if view.agentless:
        return ()
    return tuple(command for command in wished if view.commands.get(command.pod_uid) != command)


def _write(before: TrainingJobStatus, after: TrainingJobStatus) -> tuple[WriteStatus, ...]:
    """Return a write if the status differs by more than elapsed time, which the next write attributes."""
    if _without_elapsed_time(before) == _without_elapsed_time(after):
        return ()
    return (WriteStatus(status=after, urgent=_decisive_fields(before) != _decisive_fields(after)),)


def _edited(view: View) -> tuple[EmitEvent, ...]:
    """Return the event for an edit that the existing pods cannot follow, such as a changed parameter."""
    seen, generation = view.job.status.observed_generation, view.job.metadata.generation
    if not 0 < seen < generation or view.job.spec.suspend:
        return ()
    outdated = sorted(pod.name for pod in view.pods if pod.alive and _differs(view, pod))
    if not outdated:
        return ()
    message = say(Reason.CONFIGURATION_CHANGED, f"pods {', '.join(outdated[:3])}")
    return (EmitEvent(type="Warning", reason=Reason.CONFIGURATION_CHANGED, message=message),)


def _differs(view: View, pod: Pod) -> bool:
    """Return whether a pod was created from a spec that differs in more than the program, which a round follows."""
    return pod.configuration != "" and not same_pod(pod.configuration, view.configuration)


def _warned(seen: Observed, before: TrainingJobStatus, after: TrainingJobStatus) -> tuple[EmitEvent, ...]:
    """Return an event for each new warning, bounded by the number of listed warnings."""
    if len(after.warnings) <= len(before.warnings):
        return ()
    found = progress.warnings(seen, before)
    return tuple(_warning(text, found[text]) for text in after.warnings if text not in before.warnings)


def _warning(text: str, reason: Reason) -> EmitEvent:
    message = say(reason, text) if reason is Reason.TRAINER_WARNING else text
    return EmitEvent(type="Warning", reason=reason, message=message)


def _without_elapsed_time(status: TrainingJobStatus) -> TrainingJobStatus:
    return replace(status, goodput=None, gpu_seconds=0.0)


def _decisive_fields(status: TrainingJobStatus) -> tuple[object, ...]:
    """Return the fields that decisions depend on and users wait for; all others are figures."""
    return (
        status.observed_generation,
        # Pods start and agents connect at nearly the same time: not worth a separate write.
        (State.PENDING, Reason.WAITING_FOR_PODS)
        if status.reason == Reason.WAITING_FOR_AGENTS
        else (status.state, status.reason),
        [(each.type, each.status) for each in status.conditions],
        status.round,
        status.incarnation,
        status.images,
        status.profile,
        status.rendezvous,
        scheduling.decisive(status.gang),
        status.restarts,
        status.nodes.desired,
        status.nodes.lost,
        [(each.round, each.end_time, each.reason) for each in status.attempts],
        status.completion_time,
        status.kept_pod,
        len(status.warnings),
        # Values at rungs: a sweep stops a trial by them.
        [name for name in (*status.metrics, *status.non_finite_metrics) if "@" in name],
    )


def _requeue(view: View, times: list[float]) -> float | None:
    ahead = [due - view.now for due in times if view.now < due < math.inf]
    return min(ahead, default=None)


def with_conditions(status: TrainingJobStatus, now: float, *, generation: int) -> TrainingJobStatus:
    """Return the status with every condition derived from the other fields."""
    earlier = _by_type(status)
    return replace(
        status,
        conditions=[
            _condition(status, earlier.get(kind), now, generation, kind, holds=holds, reason=reason)
            for kind, (holds, reason) in _values(status).items()
        ],
    )


def stalled(
    status: TrainingJobStatus, now: float, *, generation: int, evidence: str, reason: Reason = Reason.RECONCILE_FAILED
) -> TrainingJobStatus:
    """Return the status with `Stalled`: the job cannot be reconciled; all other fields keep their last known values."""
    if not status.state:
        status = replace(status, state=State.PENDING, reason=Reason.JOB_CREATED, message=say(Reason.JOB_CREATED))
    complete = status if status.conditions else with_conditions(status, now, generation=generation)
    before = _by_type(complete)
    failed = _condition(
        complete, before.get("Stalled"), now, generation, "Stalled", holds=True, reason=reason, evidence=evidence
    )
    idle = _condition(
        complete, before.get("Reconciling"), now, generation, "Reconciling", holds=False, reason=Reason.NOT_RECONCILING
    )
    changed = {"Stalled": failed, "Reconciling": idle}
    conditions = [changed.get(each.type, each) for each in complete.conditions]
    observed = max(complete.observed_generation, generation)
    return replace(complete, observed_generation=observed, conditions=conditions)


def _values(status: TrainingJobStatus) -> dict[str, tuple[bool, Reason]]:
    state = status.state
    preempted = is_preempted(status)
    idle = (state.at_rest and not preempted) or state is State.TERMINATING
    ready = status.nodes.desired > 0 and status.nodes.ready >= status.nodes.desired and not idle
    paused = state in {State.SUSPENDING, State.SUSPENDED}
    held = Reason.SUSPENDED if paused and not preempted else status.reason
    admitted = not paused and status.reason.admits
    failed = state == State.FAILED
    stalls = failed or (not idle and status.reason.stalls)
    ready_state = state.ready and not preempted
    changes = not (ready_state or stalls)
    return {
        "Ready": (ready_state and not stalls, status.reason or Reason.STARTING),
        "Reconciling": (changes, (status.reason or Reason.STARTING) if changes else Reason.NOT_RECONCILING),
        "Admitted": (admitted, Reason.ADMITTED if admitted else held),
        "PodsReady": (ready, Reason.PODS_READY if ready else Reason.PODS_NOT_READY),
        "Running": (
            state == State.RUNNING,
            (status.reason or Reason.TRAINING) if state == State.RUNNING else Reason.NOT_TRAINING,
        ),
        "Progressing": (not idle, status.reason or Reason.STARTING),
        "Recovering": (state == State.RECOVERING, Reason.RECOVERING if state == State.RECOVERING else Reason.HEALTHY),
        "CheckpointReady": (
            status.checkpoint is not None,
            Reason.CHECKPOINT_SAVED if status.checkpoint is not None else Reason.NO_CHECKPOINT_YET,
        ),
        "ExportVerified": _export(status),
        "Stalled": (stalls, status.reason if stalls else Reason.NOT_STALLED),
        "Complete": (state == State.SUCCEEDED, Reason.COMPLETED if state == State.SUCCEEDED else Reason.NOT_FINISHED),
        "Failed": (failed, status.reason if failed and status.reason else Reason.NOT_FAILED),
    }


def _export(status: TrainingJobStatus) -> tuple[bool, Reason]:
    """Return whether the exported formats compute what the model computes, and the reason."""
    verdicts = [artifact.verified for artifact in status.artifacts if artifact.name.startswith(EXPORTS)]
    if not verdicts:
        return False, Reason.NO_EXPORT
    if False in verdicts:
        return False, Reason.EXPORT_REFUSED
    return (True, Reason.EXPORT_VERIFIED) if all(verdicts) else (False, Reason.EXPORT_NOT_VERIFIED)


def _by_type(status: TrainingJobStatus) -> dict[str, Condition]:
    return {each.type: each for each in reversed(status.conditions)}


def _condition(
    status: TrainingJobStatus,
    before: Condition | None,
    now: float,
    generation: int,
    kind: str,
    *,
    holds: bool,
    reason: Reason,
    evidence: str = "",
) -> Condition:
    value: Literal["True", "False"] = "True" if holds else "False"
    own_words = reason == status.reason and status.message and kind in OWN_WORDS
    message = (status.message if own_words else say(reason, evidence))[:MAX_MESSAGE]
    kept = before is not None and before.status == value and bool(before.last_transition_time)
    if before is not None and kept and (before.reason, before.message) == (reason, message):
        # Return the same object, so that comparing statuses is cheap.
        return before if before.observed_generation == generation else replace(before, observed_generation=generation)
    return Condition(
        type=kind,
        status=value,
        reason=reason,
        message=message,
        last_transition_time=before.last_transition_time if before is not None and kept else Time.of(now),
        observed_generation=generation,
    )
