"""The state machine of a job: at most one transition per plan, from the persisted status and current observations."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from torchyard.api.exit_codes import ExitCode, exit_code_of
from torchyard.api.launch import fewest_nodes
from torchyard.api.reasons import Reason, say, timeout_advice
from torchyard.api.status import State, Straggler, TrainingJobStatus, is_preempted, with_reason
from torchyard.api.validation.schema_check import params_faults
from torchyard.api.values import BUILT_IN, Time, plural, since
from torchyard.reconcile import elastic, failures, pace, progress, rounds, waiting
from torchyard.reconcile.actions import EmitEvent
from torchyard.reconcile.code import edit, missing_code
from torchyard.reconcile.failures import Outcome
from torchyard.reconcile.gang import FUTILE
from torchyard.reconcile.observed import (
    Observed,
    Pod,
    View,
    admission,
    cannot_start,
    counts_for_index,
    is_edited,
    is_flexible,
    stuck_start_due,
)
from torchyard.reconcile.progress import counts_from_start, running, step_age
from torchyard.reconcile.restart_policy import decide_restart
from torchyard.reconcile.rounds import answer, silent_start_due, started
from torchyard.reconcile.scheduling import CHANGES, ON_REQUEST, PAUSES, pause_reason
from torchyard.reconcile.waiting import with_pending_reason

FROM_START = "counted from the start of this round: the program does not say at which step it resumed"
# What keeps a job from its gang scheduler.
NOT_QUEUED = frozenset({Reason.CODE_MISSING, Reason.PROFILE_NOT_FOUND, Reason.OUTSIDE_PROFILE})
FILES_GONE = "its files are lost with its pods, since spec.checkpoint.volume names no claim"
# Delay before a pod that was not charged is replaced, unless it lived longer.
FIRST_PAUSE_SECONDS, PAUSE_SECONDS = 2.0, 30.0


class Transition(Struct, frozen=True, kw_only=True):
    """The status after this plan, the events to record, and when to plan again if nothing changes."""

    status: TrainingJobStatus
    events: tuple[EmitEvent, ...] = ()
    due: tuple[float, ...] = ()


def next_transition(seen: Observed, status: TrainingJobStatus) -> Transition:
    """Decide the next transition of a job. `status` has the current figures already."""
    view = seen.view
    if status.state.terminal:
        return Transition(status=status)
    deadline = _deadline(view, status)
    if deadline is not None and view.now >= deadline:
        advice = f"raise it and run the job again; {_kept(view, status)}"
        return fail(seen, status, Reason.DEADLINE_EXCEEDED, f"after {view.job.spec.active_deadline}", advice=advice)
    decided = _open_transition(seen, status) if status.rendezvous.open else _closed_transition(seen, status)
    return replace(decided, due=(*decided.due, deadline)) if deadline is not None else decided


def _deadline(view: View, status: TrainingJobStatus) -> float | None:
    """Return when `spec.activeDeadline` ends the job; it counts from the first round, without pauses."""
    begun = status.start_time
    limit = view.job.spec.active_deadline
    return begun + limit if begun is not None and limit is not None else None


def _waiting_events(before: TrainingJobStatus, now: TrainingJobStatus) -> tuple[EmitEvent, ...]:
    """Return an event if the reason for waiting is new; the status keeps the reason until it is resolved."""
    reason = Reason.of(now.reason)
    if now.reason == before.reason or reason is None or not reason.announced:
        return ()
    if now.reason == FUTILE and now.rendezvous.releases > 0:
        return ()  # announced before the first release of its pods, and unchanged
    return (EmitEvent(type="Warning", reason=now.reason, message=now.message),)


def _kept(view: View, status: TrainingJobStatus) -> str:
    """Return a sentence about what remains of the job's work."""
    if status.checkpoint is None:
        return "no checkpoint was saved"
    return f"its checkpoint of step {status.checkpoint.step} is kept" if view.files_stay else f"note that {FILES_GONE}"


def fail(seen: Observed, status: TrainingJobStatus, reason: Reason, evidence: str, *, advice: str = "") -> Transition:
    """Fail the job and close an open round. `advice`: replaces the reason's next step."""
    if status.rendezvous.open:
        status = rounds.close_clean(seen, status, reason)
    message = say(reason, evidence, advice=advice)
    status = replace(
        status,
        state=State.FAILED,
        reason=reason,
        message=message,
        completion_time=Time.of(seen.view.now),
        exit_code=exit_code_of(reason),
    )
    return Transition(status=status, events=(EmitEvent(type="Warning", reason=reason, message=message),))


def _open_transition(seen: Observed, status: TrainingJobStatus) -> Transition:
    view = seen.view
    outcomes = rounds.member_outcomes(seen, status)
    if outcomes and all(each.state == "done" for each in outcomes):
        return _succeed(seen, status)
    ending = status.attempts[-1] if status.attempts and status.attempts[-1].end_time else None
    begun = Reason.of(ending.reason) if ending is not None and ending.reason in ON_REQUEST else None
    pause = pause_reason(view) if begun is None or begun in CHANGES else None
    pause = pause or begun
    if pause:
        return _save_and_close(seen, status, outcomes, pause)
    if any(each.state == "failed" for each in outcomes):
        settled, due = rounds.settled(view, status, outcomes)
        if not settled:
            marked = status if ending is not None else rounds.begin_end(view, status, Reason.ROUND_CLOSED)
            return Transition(status=with_reason(marked, _open_state(seen, marked), status.reason), due=(due,))
        return _close(seen, status, failures.first(outcomes), outcomes)
    overdue, start_due = rounds.timed_out(seen, status)
    if overdue is not None:
        return _close(seen, status, overdue, outcomes)
    if (moved := _moved(seen, status)) is not None:
        return moved
    resize = elastic.resize(seen, status) if view.job.spec.elastic is not None else elastic.NONE
    if resize.sentence:
        return _change(seen, status, Reason.RESIZING, resize.sentence)
    decided = _train(seen, status, start_due)
    return decided if resize.due is None else replace(decided, due=(*decided.due, resize.due))


def _leaving(seen: Observed, status: TrainingJobStatus) -> str:
    """Return the notices of the nodes of members; empty: there are none."""
    if seen.view.agentless:
        return ""
    members = (seen.pods[uid] for uid in status.rendezvous.members if uid in seen.pods)
    notices = dict.fromkeys(f"node {pod.node}: {pod.leaving}" for pod in members if pod.leaving)
    return "; ".join([*notices][:3])


def _moved(seen: Observed, status: TrainingJobStatus) -> Transition | None:
    """End the round because its program was edited, or for the sake of a pod that others take the place of."""
    if is_edited(seen.view, status) and not missing_code(seen.view.job):
        return _change(seen, status, Reason.PROGRAM_CHANGED, edit(status, seen.view.job.spec))
    if leaving := _leaving(seen, status):
        return _change(seen, status, Reason.NODE_LEAVING, leaving)
    slow = _slow(seen, status)
    if slow is None:
        return None
    return _change(seen, pace.with_cause(status, slow), Reason.REPLACING_STRAGGLER, pace.described(slow))


def _slow(seen: Observed, status: TrainingJobStatus) -> Straggler | None:
    """Return the slow rank whose pod a spare replaces now."""
    if not seen.view.job.spec.health.replace_straggler or status.state != State.RUNNING:
        return None
    slow = pace.replaceable(status)
    return slow if slow is not None and slow.pod and elastic.may_replace(seen, status) else None


def _change(seen: Observed, status: TrainingJobStatus, why: Reason, evidence: str) -> Transition:
    """Begin the end of a round after which the gang continues with other pods, or with more or fewer."""
    state = _open_state(seen, status)
    status = with_reason(rounds.begin_end(seen.view, status, why), state, why, evidence)
    due = seen.view.now + seen.view.job.spec.grace_period + rounds.STOP_SECONDS
    kind: Literal["Normal", "Warning"] = "Warning" if why.announced else "Normal"
    return Transition(status=status, events=(EmitEvent(type=kind, reason=why, message=status.message),), due=(due,))


def _train(seen: Observed, status: TrainingJobStatus, start_due: float | None) -> Transition:
    """Continue the open round."""
    view = seen.view
    state = _open_state(seen, status)
    begun = state == State.RUNNING and view.job.status.state != State.RUNNING
    if begun:
        status = _note_recovery(view, status)
    silent, silence_due = rounds.silent_members(view, status)
    status = _with_silence(status, silent)
    idle, idle_due = rounds.silent_workers(view, status) if state != State.RUNNING else ("", None)
    reason, evidence = (
        {State.RUNNING: running(status), State.RECOVERING: Reason.RECOVERING}.get(state, Reason.STARTING),
        "",
    )
    age_due: float | None = None
    devices = [f"{device}: ranks {ranks}" for device, ranks in status.devices.items()]
    where = ", ".join((f"round {status.round}", *devices))
    events = (EmitEvent(type="Normal", reason=reason, message=say(reason, where)),)
    if silent:
        reason, evidence = Reason.AGENT_SILENT, silent
    elif idle:
        reason, evidence = Reason.WORKERS_SILENT, idle
    elif state == State.RUNNING:
        evidence, age_due = step_age(seen, status)
        members, nodes = len(status.rendezvous.members), view.job.spec.nodes
        if view.job.spec.elastic is not None and members < nodes:
            evidence = "; ".join(filter(None, (f"on {members} of {plural(nodes, 'node')}", evidence)))
        if counts_from_start(seen, status):
            evidence = "; ".join(filter(None, (evidence, FROM_START)))
    status = with_reason(status, state, reason, evidence)
    times = (age_due, start_due, silent_start_due(seen, status), silence_due, idle_due)
    due = tuple(each for each in times if each is not None)
    return Transition(
        status=status, events=(*(events if begun else ()), *_waiting_events(view.job.status, status)), due=due
    )


def _with_silence(status: TrainingJobStatus, silent: str) -> TrainingJobStatus:
    """Return the status with the fact that agents are silent: a new operator need not establish it again."""
    if status.rendezvous.silent == bool(silent):
        return status
    return replace(status, rendezvous=replace(status.rendezvous, silent=bool(silent)))


def _open_state(seen: Observed, status: TrainingJobStatus) -> State:
    if started(seen, status):
        return State.RUNNING
    return State.RECOVERING if status.state == State.RECOVERING else State.STARTING


def _note_recovery(view: View, status: TrainingJobStatus) -> TrainingJobStatus:
    """Record in the former attempt how long the job made no steps."""
    if len(status.attempts) < 2 or status.state != State.RECOVERING:
        return status
    ended = status.attempts[-2].end_time
    lost = max(0.0, view.now - ended) if ended is not None else 0.0
    before = replace(status.attempts[-2], seconds_lost=round(lost, 1))
    return replace(status, attempts=[*status.attempts[:-2], before, status.attempts[-1]])


def _succeed(seen: Observed, status: TrainingJobStatus) -> Transition:
    status = rounds.close_clean(seen, status, Reason.COMPLETED)
    said = [f"step {status.progress.step}"] if status.progress.step else []
    said += [FILES_GONE] if status.artifacts and not seen.view.files_stay else []
    message = say(Reason.COMPLETED, ", ".join(said))
    progress = replace(status.progress, eta_seconds=0) if status.progress.total_steps else status.progress
    status = replace(
        status,
        state=State.SUCCEEDED,
        reason=Reason.COMPLETED,
        message=message,
        completion_time=Time.of(seen.view.now),
        progress=progress,
    )
    return Transition(status=status, events=(EmitEvent(type="Normal", reason=Reason.COMPLETED, message=message),))


def _close(seen: Observed, status: TrainingJobStatus, cause: Outcome, outcomes: tuple[Outcome, ...]) -> Transition:
    """Close a failed round: record the first cause, apply the restart budget, and continue or fail the job."""
    lost = sum(each.lost_pod for each in outcomes)
    status, decision = rounds.close_failed(seen, status, cause, lost)
    status = progress.lose(status, status.attempts[-1].end_step if status.attempts else 0)
    proof = failures.evidence(cause)
    if decision.final_reason is not None:
        return fail(
            seen,
            status,
            decision.final_reason,
            _final_evidence(seen.view, decision.final_reason, status, cause, proof),
            advice=cause.reason.next_step,
        )
    if decision.micro_batch is not None:
        proof = f"{proof}, continuing with micro-batches of {decision.micro_batch}"
    message = say(cause.reason, proof)
    status = replace(status, state=State.RECOVERING, reason=cause.reason, message=message)
    event = EmitEvent(type="Warning", reason=cause.reason, message=f"Round {status.round} ended: {message}"[:1024])
    return Transition(status=status, events=(event,), due=_backoff_due(seen.view, status))


def _final_evidence(view: View, final_reason: Reason, status: TrainingJobStatus, cause: Outcome, proof: str) -> str:
    if final_reason == cause.reason and cause.start_attempts:
        return f"{cause.start_attempts} attempts in a row, the last one: {proof}"
    if final_reason == cause.reason:
        return proof
    count = {
        Reason.NO_PROGRESS: f"{plural(status.restarts.no_progress, 'round')}, no newer step reported",
        Reason.MAX_RESTARTS_EXCEEDED: f"maxRestarts {view.job.spec.restart.max_restarts}",
    }.get(final_reason, "")
    return ", ".join(part for part in (count, f"last cause {cause.reason}", proof) if part)


def _save_and_close(
    seen: Observed, status: TrainingJobStatus, outcomes: tuple[Outcome, ...], why: Reason
) -> Transition:
    """End an open round by request: wait until every member has saved and stopped, at most for the grace period."""
    view = seen.view
    attempt = status.attempts[-1] if status.attempts else None
    if attempt is None or not attempt.end_time or attempt.reason not in ({why} | PAUSES):
        events = _pause_begins(view, why)
        status = rounds.begin_end(view, status, why)
        attempt = status.attempts[-1] if status.attempts else None
    else:
        events = ()
    limit = view.job.spec.grace_period + rounds.STOP_SECONDS
    due = since(attempt.end_time if attempt is not None else None, view.now) + limit
    if view.now < due and any(each.state == "running" and not _never_began(view, status, each) for each in outcomes):
        return Transition(status=_pausing(view, status, why), events=events, due=(due,))
    said = answer(view, status)
    status = rounds.close_clean(seen, status, why, answer=said)
    if said and why not in CHANGES:
        events = (*events, EmitEvent(type="Normal", reason=Reason.SUSPENDING, message=say(Reason.SUSPENDING, said)))
    return Transition(status=_pausing(view, status, why, said), events=events)


def _pause_begins(view: View, why: Reason) -> tuple[EmitEvent, ...]:
    if why is Reason.SUSPENDED:
        return (EmitEvent(type="Normal", reason=Reason.SUSPENDING, message=say(Reason.SUSPENDING)),)
    return (EmitEvent(type="Warning", reason=why, message=say(why, admission(view).evidence)),)


def _pausing(view: View, status: TrainingJobStatus, why: Reason, said: str = "") -> TrainingJobStatus:
    if why is Reason.SUSPENDED:
        return with_reason(status, State.SUSPENDING, Reason.SUSPENDING, said)
    if why in CHANGES:
        # The message keeps the decision.
        return status if status.rendezvous.open else replace(status, state=State.STARTING)
    evidence = "; ".join(filter(None, (admission(view).evidence, said)))
    return with_reason(status, State.SUSPENDING, why, evidence)


def _answered(status: TrainingJobStatus) -> str:
    """Return how the workers of the newest round responded to the request to save."""
    return status.attempts[-1].answer if status.attempts and status.attempts[-1].reason in PAUSES else ""


def _never_began(view: View, status: TrainingJobStatus, member: Outcome) -> bool:
    """Return whether the round was closed before this member received it: its workers never started."""
    agent = view.agents.get(status.rendezvous.members[member.rank])
    return (
        agent is not None
        and agent.connected
        and agent.current
        and agent.state == "ready"
        and agent.round < status.round
    )


def _closed_transition(seen: Observed, status: TrainingJobStatus) -> Transition:
    view = seen.view
    kept_out = _without_pods(seen, status)
    if kept_out is not None:
        return kept_out
    status, events = _begin(status)
    status = _without_delay_of_former_program(view, status)
    died = _died_idle(seen, status)
    if died is not None:
        return _charge_idle(seen, status, died)
    gate = waiting.barrier(seen, status)
    short = len(gate.ready) < fewest_nodes(view.job.spec)
    late, pending_due = waiting.pending(seen, status) if short else ("", None)
    if late:
        reason = waiting.waited_for(seen)
        status = replace(status, rendezvous=replace(status.rendezvous, waited_for=reason))
        return fail(seen, status, Reason.PENDING_TIMEOUT, late, advice=timeout_advice(reason))
    emptied, part_due = waiting.release_gang(seen, status)
    if emptied is not None:
        status = emptied
        return Transition(
            status=status, events=(*events, *_waiting_events(view.job.status, status)), due=_backoff_due(view, status)
        )
    opens, backoff = waiting.may_open(view, status, gate)
    if opens:
        unlike = waiting.difference(gate)
        return _replace_gang(seen, status, unlike) if unlike else _open(view, status, gate, events)
    late, start_due = waiting.start(view, status, gate) if short else ("", None)
    if late:
        return fail(seen, status, Reason.START_TIMEOUT, late)
    silent, silence_due = waiting.silent(view, gate)
    status = _with_silence(status, silent)
    stuck = [*(stuck_start_due(pod) for pod in view.pods), waiting.pull_due(view)]
    due = tuple(each for each in (pending_due, part_due, backoff, start_due, silence_due, *stuck) if each is not None)
    status = with_pending_reason(seen, status, gate, silent)
    return Transition(status=status, events=(*events, *_waiting_events(view.job.status, status)), due=due)


def _without_delay_of_former_program(view: View, status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status without the back-off and the count of rounds without progress, if the program was edited.

    It does so once: a program that fails again is delayed as any other.
    """
    if view.program is None or not is_edited(view, status) or missing_code(view.job):
        return status
    meet = status.rendezvous
    due = meet.next_round_time if meet.released else None
    return replace(
        status,
        restarts=replace(status.restarts, no_progress=0),
        rendezvous=replace(meet, program=view.program.digest, next_round_time=due),
    )


def _without_pods(seen: Observed, status: TrainingJobStatus) -> Transition | None:
    """Return the transition of a job that must not have pods now; None: it may."""
    view = seen.view
    pause = pause_reason(view)
    if pause:
        return _suspended_transition(view, status, pause)
    impossible = _impossible(view, status)
    if impossible is not None:
        return fail(seen, status, *impossible)
    if admission(view).pods != "create" and not any(pod.alive for pod in view.pods):
        return _queue(view, status)
    return None


def _queue(view: View, status: TrainingJobStatus) -> Transition:
    """Wait without pods until the gang scheduler lets them exist; a job that was preempted stays suspended."""
    verdict = admission(view)
    if view.refusal is not None:
        status = with_reason(status, State.QUEUED, view.refusal.reason, view.refusal.message)
    elif is_preempted(status):
        status = with_reason(status, State.SUSPENDED, Reason.PREEMPTED, verdict.evidence)
    else:
        state = State.PENDING if verdict.reason in NOT_QUEUED else State.QUEUED
        status = with_reason(status, state, verdict.reason, verdict.evidence)
    return Transition(status=status, events=_waiting_events(view.job.status, status))


def _impossible(view: View, status: TrainingJobStatus) -> tuple[Reason, str] | None:
    """Return reason and evidence of a job that no pod can run."""
    wrong = _wrong_parameters(view, status)
    if wrong:
        return Reason.INVALID_SPEC, wrong
    if view.refusal is not None and view.refusal.permanent:
        return view.refusal.reason, view.refusal.message
    return None


def _wrong_parameters(view: View, status: TrainingJobStatus) -> str:
    """Return what the built-in trainer would reject, before the first pod is created and after a suspend.

    The API server cannot check them, since they depend on the trainer. An existing gang is not checked, so that an
    upgrade of the operator does not end jobs that train.
    """
    trainer = view.job.spec.trainer
    fresh = status.round == 0 or view.job.status.state == State.SUSPENDED
    if trainer is None or trainer.name not in BUILT_IN or view.pods or not fresh:
        return ""
    return "; ".join(params_faults(trainer.name, trainer.params)[:3])


def _begin(status: TrainingJobStatus) -> tuple[TrainingJobStatus, tuple[EmitEvent, ...]]:
    """Return the status of a job that is new or was suspended; any other status unchanged."""
    if status.state in {State.SUSPENDING, State.SUSPENDED}:
        resumed = EmitEvent(type="Normal", reason=Reason.RESUMED, message=say(Reason.RESUMED))
        return with_reason(status, State.PENDING, Reason.RESUMED), (resumed,)
    return (status if status.state else with_reason(status, State.PENDING, Reason.JOB_CREATED)), ()


def _open(view: View, status: TrainingJobStatus, gate: waiting.Barrier, events: tuple[EmitEvent, ...]) -> Transition:
    status = rounds.open_round(view, status, gate)
    again = status.state == State.RECOVERING
    state, reason = (State.RECOVERING, Reason.RECOVERING) if again else (State.STARTING, Reason.STARTING)
    status = with_reason(status, state, reason)
    message = say(Reason.ROUND_OPENED, f"round {status.round}, {plural(len(gate.ready), 'node')}")
    return Transition(
        status=status, events=(*events, EmitEvent(type="Normal", reason=Reason.ROUND_OPENED, message=message))
    )


def _suspended_transition(view: View, status: TrainingJobStatus, why: Reason) -> Transition:
    if any(pod.alive for pod in view.pods):
        events = _pause_begins(view, why) if status.state != State.SUSPENDING else ()
        return Transition(status=_pausing(view, status, why), events=events)
    if status.state == State.SUSPENDED and status.reason == why:
        return Transition(status=status)
    saved = "no checkpoint" if view.job.spec.trainer is not None else "the program has reported no checkpoint"
    if status.checkpoint is not None:
        saved = f"checkpoint of step {status.checkpoint.step}"
    if status.checkpoint is not None and not view.files_stay:
        # Everything from the first step on is progress again.
        anew = replace(status.restarts, best_step=0, no_progress=0)
        saved, status = f"no checkpoint: {FILES_GONE}", replace(status, checkpoint=None, restarts=anew)
    said = admission(view).evidence if why is not Reason.SUSPENDED else ""
    members = [""] * len(status.rendezvous.members)
    status = replace(
        with_reason(status, State.SUSPENDED, why, "; ".join(filter(None, (said, saved, _answered(status))))),
        # The next gang has new names: pods that are still being deleted cannot be confused with it.
        incarnation=status.incarnation + 1 if status.rendezvous.members or view.pods else status.incarnation,
        images=None,
        rendezvous=replace(
            rounds.without_waits(status.rendezvous),
            members=members,
            next_round_time=None,
            releases=0,
            waiting_since=None,
        ),
    )
    return Transition(status=status, events=(EmitEvent(type="Normal", reason=why, message=status.message),))


def _died_idle(seen: Observed, status: TrainingJobStatus) -> Pod | None:
    """Return a pod that ended or cannot start between rounds and is not charged yet: its incarnation is the newest."""
    view = seen.view
    if is_flexible(view.job.spec) and len(seen.active) >= fewest_nodes(view.job.spec):
        return None  # the next round opens without it
    dead = [
        pod
        for pod in view.pods
        if (not pod.alive or cannot_start(view, pod))
        and not pod.deleting
        and not counts_for_index(view, status, pod)
        and pod.incarnation >= status.incarnation
        and pod.index < seen.desired_pods
        # The end of a member of a former round was part of that round's failure.
        and pod.uid not in status.rendezvous.members
    ]
    return min(dead, key=lambda pod: (pod.finished or 0.0, pod.index), default=None)


def _charge_idle(seen: Observed, status: TrainingJobStatus, pod: Pod) -> Transition:
    view = seen.view
    cause = failures.pod_failed(view, pod.index, pod)
    decision = decide_restart(status, view.job.spec.restart, cause, 0)
    proof = failures.evidence(cause)
    if cause.counted or cause.start_attempts:
        attempt = rounds.never_opened(view, status, pod.created, cause, decision)
        status = replace(status, attempts=[*status.attempts, attempt])
    status = replace(
        status,
        restarts=decision.restarts,
        incarnation=max(status.incarnation, pod.incarnation) + 1,
        nodes=replace(status.nodes, lost=status.nodes.lost + 1),
    )
    if decision.final_reason is not None:
        return fail(
            seen,
            status,
            decision.final_reason,
            _final_evidence(view, decision.final_reason, status, cause, proof),
            advice=cause.reason.next_step,
        )
    # A node that rejects pods, or evicts them at once, also rejects an immediate replacement. A second
    # fault of the same kind looks like this only until a replacement stays.
    again = status.rendezvous.next_round_time is not None
    pause = 0.0 if view.now - pod.created >= PAUSE_SECONDS else PAUSE_SECONDS if again else FIRST_PAUSE_SECONDS
    delay = decision.delay if decision.counted or cause.start_attempts else pause
    wait = replace(
        rounds.without_waits(status.rendezvous), next_round_time=Time.of(view.now + delay) if delay else None
    )
    status = replace(with_reason(status, State.RECOVERING, cause.reason, proof), rendezvous=wait)
    event = EmitEvent(type="Warning", reason=cause.reason, message=status.message)
    return Transition(status=status, events=(event,), due=_backoff_due(view, status))


def _replace_gang(seen: Observed, status: TrainingJobStatus, unlike: str) -> Transition:
    """Replace all pods of a gang that do not run the same configuration; several times in a row fail the job."""
    view = seen.view
    cause = failures.gang_differs(unlike, view.now)
    decision = decide_restart(status, view.job.spec.restart, cause, 0)
    newest = max([status.incarnation, *(pod.incarnation for pod in view.pods)]) + 1
    status = replace(
        status,
        attempts=[*status.attempts, rounds.never_opened(view, status, view.now, cause, decision)],
        restarts=decision.restarts,
        incarnation=newest,
    )
    if decision.final_reason is not None:
        return fail(
            seen, status, decision.final_reason, _final_evidence(view, decision.final_reason, status, cause, unlike)
        )
    again = replace(
        rounds.without_waits(status.rendezvous),
        oldest_incarnation=newest,
        next_round_time=Time.of(view.now + decision.delay),
        members=[],
    )
    status = replace(with_reason(status, State.RECOVERING, cause.reason, unlike), rendezvous=again)
    event = EmitEvent(type="Warning", reason=cause.reason, message=status.message)
    return Transition(status=status, events=(event,), due=_backoff_due(view, status))


def _backoff_due(view: View, status: TrainingJobStatus) -> tuple[float, ...]:
    due = status.rendezvous.next_round_time
    return (due,) if due is not None and due > view.now else ()


def exit_code(status: TrainingJobStatus) -> int:
    """Return the exit code for the agents of a finished job."""
    if status.state == State.SUCCEEDED:
        return ExitCode.DONE
    return status.exit_code if status.exit_code is not None else ExitCode.USER_ERROR
