"""Rounds: opening, the outcome, silence and commands of the members, and the end."""

from typing import Any

from msgspec.structs import replace

from torchyard.api.code_source import REPORT
from torchyard.api.reasons import Reason
from torchyard.api.status import Attempt, Phase, Rendezvous, State, TrainingJobStatus
from torchyard.api.values import Time, since
from torchyard.reconcile import failures
from torchyard.reconcile.actions import CommandAgent
from torchyard.reconcile.code import SHOWN_DIGITS, code_of_round, code_status
from torchyard.reconcile.failures import Outcome
from torchyard.reconcile.observed import Agent, Observed, Pod, RankReport, RoundExit, View, is_edited, node_lost
from torchyard.reconcile.progress import RETURN_SECONDS
from torchyard.reconcile.restart_policy import RestartDecision, decide_restart
from torchyard.reconcile.waiting import SILENT_AGENT_SECONDS, Barrier

MICRO_BATCH = "TORCHYARD_MICRO_BATCH"
SETTLE_SECONDS = 2.0
SILENT_WORKERS_SECONDS = 60.0
SILENT_START_SECONDS = 30.0
STOP_SECONDS = 10.0  # beyond the grace period: how long agents may take to stop workers that did not save in time


def open_round(view: View, status: TrainingJobStatus, gate: Barrier) -> TrainingJobStatus:
    """Return the status with round n + 1 open, which must be persisted before an agent gets the command."""
    leader = gate.ready[0][1]
    opened = Time.of(view.now)
    resumed = status.checkpoint.step if status.checkpoint is not None else 0
    again = status.state == State.RECOVERING and status.round > 0
    reports = (each.revision for _, agent in gate.ready for each in agent.inputs if each.name == REPORT)
    code = code_status(view.job.spec.code, next(filter(None, reports), ""))
    ran = code.digest[:SHOWN_DIGITS] if code is not None else ""
    attempt = Attempt(round=status.round + 1, start_time=opened, start_step=resumed, end_step=resumed, code=ran)
    return replace(
        status,
        round=status.round + 1,
        restarts=replace(status.restarts, total=status.restarts.total + again),
        rendezvous=Rendezvous(
            open=True,
            master_address=leader.address,
            master_port=leader.master_port,
            members=[pod.uid for pod, _ in gate.ready],
            micro_batch=status.rendezvous.micro_batch,
            oldest_incarnation=status.rendezvous.oldest_incarnation,
            program=view.program.digest if view.program is not None else "",
        ),
        attempts=[*status.attempts, attempt],
        progress=replace(status.progress, stalled=None),
        start_time=status.start_time or opened,
        code=code,
    )


def member_outcomes(seen: Observed, status: TrainingJobStatus) -> tuple[Outcome, ...]:
    """Return the outcome of each member of the open round, in rank order."""
    stepping = any(report.step > 0 for report in seen.reports)
    return tuple(
        _outcome(seen.view, seen.pods.get(uid), uid, rank, status.round, peers_run=stepping)
        for rank, uid in enumerate(status.rendezvous.members)
    )


def _outcome(view: View, pod: Pod | None, uid: str, node_rank: int, number: int, *, peers_run: bool) -> Outcome:
    """Return the outcome of the member `uid` in round `number`.

    Args:
        view: what is known.
        pod: of the member; None: it is gone.
        uid: of that pod.
        node_rank: its place in the round.
        number: of the round.
        peers_run: whether some member is known to have started the round.
    """
    found = _unranked_outcome(view, pod, uid, node_rank, number, peers_run=peers_run)
    if found.state != "failed" or found.cause.rank is not None:
        return found
    # The loss of a pod concerns all its ranks; the first one represents them.
    return replace(found, cause=replace(found.cause, rank=node_rank * _procs(view, uid)))


def _unranked_outcome(  # noqa: PLR0911 -- one line a fact, in the order of what it proves
    view: View, pod: Pod | None, uid: str, node_rank: int, number: int, *, peers_run: bool
) -> Outcome:
    agent = view.agents.get(uid)
    ended = agent.exit if agent is not None and agent.exit is not None and agent.exit.round == number else None
    if ended is not None and ended.code == 0:
        return Outcome(rank=node_rank, state="done", reason=Reason.COMPLETED, code=0, time=ended.time)
    asked = pod is not None and pod.unconfirmed and ended is not None and ended.asked  # to stop: not why the pod went
    if ended is not None and not asked:
        return failures.worker_failed(node_rank, pod, ended, classified=failures.classified(view, ended))
    if pod is None:
        proof = f"the pod of index {node_rank} is gone for an unknown reason"
        return failures.lost(node_rank, None, Reason.POD_LOST, proof, view.now)
    if pod.phase == "Succeeded" and not pod.exit_code:
        return Outcome(rank=node_rank, state="done", reason=Reason.COMPLETED, code=0, time=pod.finished or view.now)
    if not pod.alive:
        return failures.pod_failed(view, node_rank, failures.without_old_mark(view, pod))
    if node_lost(view, pod):
        return failures.lost(node_rank, pod, Reason.NODE_LOST, "neither the node nor the agent responds", view.now)
    if pod.unconfirmed:
        return Outcome(rank=node_rank, state="running")  # the answer of the API server will name a better cause
    if pod.deleting and (agent is None or not agent.connected):
        known = Reason.POD_LOST if pod.reason == Reason.POD_LOST else pod.displaced
        why = pod.message if known is not None else "its pod is being deleted"
        return failures.lost(node_rank, pod, known or Reason.POD_LOST, why, view.now)
    if agent is not None and agent.round > number:
        return failures.lost(
            node_rank, pod, Reason.AGENT_RESTARTED, "its agent knows a newer round than the status", view.now
        )
    if agent is not None and _restarted(view, agent, number, peers_run=peers_run):
        return failures.lost(node_rank, pod, Reason.AGENT_RESTARTED, "its agent lost the round", view.now)
    return Outcome(rank=node_rank, state="running")


def _restarted(view: View, agent: Agent, number: int, *, peers_run: bool) -> bool:
    """Return whether the process of the agent was restarted, so that it no longer knows the round.

    The registry drops the command of an agent whose instance changed: a member without a command beside members with
    one restarted while this operator ran; a member without a round beside peers that make steps restarted earlier.
    """
    if agent.round >= number or not agent.connected:
        return False
    members = view.job.status.rendezvous.members
    commanded = any(
        other != agent.pod_uid and view.commands[other].verb == "run" and view.commands[other].round == number
        for other in members
        if other in view.commands
    )
    return (commanded and agent.pod_uid not in view.commands) or (peers_run and agent.pod_uid not in view.commands)


def _procs(view: View, uid: str) -> int:
    """Return the number of worker processes of a member's pod."""
    if isinstance(view.procs, int):
        return view.procs
    agent = view.agents.get(uid)
    return agent.procs if agent is not None else max(1, view.job.spec.gpus_per_node)


def started(seen: Observed, status: TrainingJobStatus) -> bool:
    """Return whether the open round has made its first step. Once Running, it stays so until it closes.

    A program without reports counts as started after its workers have run for half a minute. Built-in workloads always
    report first: without a report there is no worker yet, and health.startTimeout applies.
    """
    view = seen.view
    if not status.rendezvous.open:
        return False
    if view.job.status.state == State.RUNNING and view.job.status.round == status.round:
        return True
    if _reports_steps(seen):
        first = status.attempts[-1].start_step if status.attempts else 0
        return any(_stepped(report, first) for report in seen.reports)
    running = all(_runs(view.agents.get(uid), status.round) for uid in status.rendezvous.members)
    return running and view.now >= _silent_start(view, status)


def silent_start_due(seen: Observed, status: TrainingJobStatus) -> float | None:
    """Return when a round without reports will count as started."""
    if not status.rendezvous.open or _reports_steps(seen) or started(seen, status):
        return None
    due = _silent_start(seen.view, status)
    return due if due > seen.view.now else None


def _reports_steps(seen: Observed) -> bool:
    """Return whether the program of the open round reports steps: it has done so, or is a built-in workload."""
    return seen.view.job.spec.trainer is not None or bool(seen.reports)


def _stepped(report: RankReport, first: int) -> bool:
    phase = Phase.of(report.phase)
    if phase is not None and phase.after_step:
        return True
    return report.step > 0 and not (phase is not None and phase.before_steps) and report.step != first


def _runs(agent: Agent | None, number: int) -> bool:
    return agent is not None and agent.round == number and agent.state == "running"


def _silent_start(view: View, status: TrainingJobStatus) -> float:
    return since(status.attempts[-1].start_time if status.attempts else None, view.now) + SILENT_START_SECONDS


def timed_out(seen: Observed, status: TrainingJobStatus) -> tuple[Outcome | None, float | None]:
    """Return the failure of a round whose first step is overdue, or when it will be.

    This applies only to jobs that report: a program without reports may be at step 1,000. Time in which no operator
    listened does not count.
    """
    view = seen.view
    reports = seen.reports
    if started(seen, status) or not (reports or view.job.spec.trainer is not None):
        return None, None
    if any(uid not in view.agents or not view.agents[uid].connected for uid in status.rendezvous.members):
        return None, None
    begun = max(view.since, since(status.attempts[-1].start_time if status.attempts else None, view.now))
    due = begun + view.job.spec.health.start_timeout
    if view.now < due:
        return None, due
    slow = max(reports, key=lambda report: -report.rank, default=None)
    phase = slow.phase if slow is not None else ""
    return failures.overdue(view.job.spec.health.start_timeout, phase, view.now, nodes=view.job.spec.nodes), None


def silent_members(view: View, status: TrainingJobStatus) -> tuple[str, float | None]:
    """Return the members of the open round if none is connected any more, or when their silence becomes significant.

    One connected member is enough to observe training; without any, the figures are out of date.
    """
    members = status.rendezvous.members
    agents = [agent for uid in members if (agent := view.agents.get(uid)) is not None]
    mute = sorted(pod.name for pod in view.pods if pod.uid in members and pod.phase == "Running" and not pod.deleting)
    if any(agent.connected for agent in agents) or len(mute) < len(members):
        return "", None
    listening = 0.0 if view.job.status.rendezvous.silent else view.since
    due = max([listening, *(agent.seen for agent in agents)]) + SILENT_AGENT_SECONDS
    return (f"{', '.join(mute[:3])}; it is not known whether they train", None) if view.now >= due else ("", due)


def silent_workers(view: View, status: TrainingJobStatus) -> tuple[str, float | None]:
    """Return members of a starting round whose agents report but not their workers, or when that is significant.

    Only built-in workloads are expected to report: their workers do so before anything else.
    """
    agents = [view.agents.get(uid) for uid in status.rendezvous.members]
    connected = [agent for agent in agents if agent is not None and agent.connected]
    mute = {agent.pod_uid for agent in connected if all(each.round != status.round for each in agent.reports)}
    if view.job.spec.trainer is None or len(connected) < len(agents) or not mute:
        return "", None
    begun = status.attempts[-1].start_time if status.attempts else None
    due = since(begun, view.now) + SILENT_WORKERS_SECONDS
    names = sorted(pod.name for pod in view.pods if pod.uid in mute)
    return (f"none in {', '.join(names[:3])} since {begun}", None) if view.now >= due else ("", due)


def settled(view: View, status: TrainingJobStatus, outcomes: tuple[Outcome, ...]) -> tuple[bool, float]:
    """Return whether the first cause is known, else when to decide without it.

    A failure that is not a consequence is the cause. If only consequences are known, wait a moment: the member that
    failed first may report last, and an eviction is reported only after the pod has stopped. Members may not have
    connected to a new operator process yet, and without their agents no round could open anyway.
    """
    unexplained = any(each.unexplained for each in outcomes)
    primary = any(each.state == "failed" and not (each.secondary or each.unexplained) for each in outcomes)
    ended = all(each.state != "running" for each in outcomes) and not unexplained
    due = since(status.attempts[-1].end_time if status.attempts else None, view.now) + SETTLE_SECONDS
    members = zip(status.rendezvous.members, outcomes, strict=True)
    if any(each.state == "running" and uid not in view.agents for uid, each in members):
        due = max(due, view.since + RETURN_SECONDS)
    return primary or ended or view.now >= due, due


def begin_end(view: View, status: TrainingJobStatus, reason: Reason) -> TrainingJobStatus:
    """Return the status with the end of the open round begun; it is still open."""
    return _amend(status, end_time=Time.of(view.now), reason=reason)


def close_failed(
    seen: Observed, status: TrainingJobStatus, cause: Outcome, lost: int
) -> tuple[TrainingJobStatus, RestartDecision]:
    """Return the status with the round closed, its first cause recorded, and the restart budget applied."""
    view = seen.view
    end_step = max(seen.newest_step, cause.step or 0)
    decision = decide_restart(status, view.job.spec.restart, cause, end_step)
    status = _amend(
        status,
        end_time=status.attempts[-1].end_time
        if status.attempts and status.attempts[-1].end_time
        else Time.of(view.now),
        reason=cause.reason,
        cause=cause.cause,
        counted=decision.counted,
        end_step=end_step,
        steps_gained=decision.steps_gained,
    )
    status = _shut(status, Time.of(view.now + decision.delay) if decision.delay and not decision.final_reason else None)
    if decision.micro_batch is not None:
        status = replace(status, rendezvous=replace(status.rendezvous, micro_batch=decision.micro_batch))
    nodes = replace(status.nodes, lost=status.nodes.lost + lost)
    return replace(status, restarts=decision.restarts, nodes=nodes), decision


def close_clean(seen: Observed, status: TrainingJobStatus, reason: Reason, answer: str = "") -> TrainingJobStatus:
    """Return the status with the round closed for a reason that is not charged: completion, suspend, end of the job."""
    attempt = status.attempts[-1] if status.attempts else None
    end_step = seen.newest_step
    saved = status.checkpoint.step if status.checkpoint is not None else end_step
    gained_to = end_step if reason == Reason.COMPLETED else saved
    status = _amend(
        status,
        end_time=attempt.end_time if attempt is not None and attempt.end_time else Time.of(seen.view.now),
        reason=reason,
        answer=answer,
        end_step=end_step,
        steps_gained=max(0, gained_to - (attempt.start_step if attempt else 0)),
    )
    return _shut(status, None)


def never_opened(
    view: View, status: TrainingJobStatus, begun: float, cause: Outcome, decision: RestartDecision
) -> Attempt:
    """Return the attempt for a round that could not open because a pod of its gang ended or did not start."""
    step = status.checkpoint.step if status.checkpoint is not None else 0
    return Attempt(
        round=status.round + 1,
        start_time=Time.of(begun if 0 < begun <= view.now else view.now),
        end_time=Time.of(view.now),
        reason=cause.reason,
        cause=cause.cause,
        counted=decision.counted,
        start_step=step,
        end_step=step,
    )


def commands(view: View, status: TrainingJobStatus) -> tuple[CommandAgent, ...]:
    """Return the commands of the members of the newest round, level-triggered: `run` while it is open, else `stop`."""
    meet, present = status.rendezvous, {pod.uid for pod in view.pods if pod.alive}
    if not meet.open:
        # A status that was edited, or pruned by another CRD, may lack members that train.
        trains = (uid for uid in sorted(present) if _trains(view.agents.get(uid), status.round))
        return tuple(
            CommandAgent(pod_uid=uid, verb="stop", round=status.round)
            for uid in dict.fromkeys((*meet.members, *trains))
            if uid in present
        )
    if is_edited(view, status):
        return ()  # what this round runs is not in the spec any more
    program = view.program
    sent = {"command": program.command, "env": program.env} if program is not None and program.command else {}
    return tuple(
        CommandAgent(
            pod_uid=uid,
            verb="run",
            round=status.round,
            nodes=len(meet.members),
            node_rank=rank,
            master_address=meet.master_address,
            master_port=meet.master_port,
            procs=_procs(view, uid),
            env={MICRO_BATCH: str(meet.micro_batch)} if meet.micro_batch is not None else {},
            bundle=code_of_round(view.job.spec, status),
            program=sent,
        )
        for rank, uid in enumerate(meet.members)
        if uid in present
    )


def _trains(agent: Agent | None, newest: int) -> bool:
    return agent is not None and agent.state == "running" and agent.round <= newest


def save_commands(view: View, status: TrainingJobStatus) -> tuple[CommandAgent, ...]:
    """Return commands to save and stop, or only to stop if saving is switched off."""
    present = {pod.uid for pod in view.pods if pod.alive}
    save = view.job.spec.checkpoint.on_preempt
    grace = float(view.job.spec.grace_period) if save else 0.0
    return tuple(
        CommandAgent(pod_uid=uid, verb="save-and-stop" if save else "stop", round=status.round, grace_seconds=grace)
        for uid in status.rendezvous.members
        if uid in present
    )


def without_waits(meet: Rendezvous) -> Rendezvous:
    """Return the rendezvous without the facts about what the job waited for."""
    return replace(meet, released=False, silent=False, delayed=False)


def _amend(status: TrainingJobStatus, **changes: Any) -> TrainingJobStatus:
    if not status.attempts:
        return status
    return replace(status, attempts=[*status.attempts[:-1], replace(status.attempts[-1], **changes)])


def _shut(status: TrainingJobStatus, next_round_time: Time | None) -> TrainingJobStatus:
    return replace(
        status, rendezvous=replace(without_waits(status.rendezvous), open=False, next_round_time=next_round_time)
    )


_WORST_FIRST = ("killed", "deaf", "ended")


def answer(view: View, status: TrainingJobStatus) -> str:
    """Return the worst response among the members of the newest round; empty if they report their saves."""
    agents = (view.agents[uid] for uid in status.rendezvous.members if uid in view.agents)
    ends = [each.exit for each in agents if each.exit is not None and each.exit.round == status.round]
    known = [each for each in ends if each.answer in _WORST_FIRST]
    if not known:
        return ""
    return _response(min(known, key=lambda each: (_WORST_FIRST.index(each.answer), -each.answer_seconds)))


def _response(end: RoundExit) -> str:
    seconds = f"{end.answer_seconds:.0f} s"
    if end.answer == "ended":
        return f"the program ended by itself with exit code {end.answer_code}, {seconds} after SIGTERM"
    if end.answer == "killed":
        return f"the program had not ended {seconds} after it was asked to save, and was killed; raise spec.gracePeriod"
    return "the program does not handle SIGTERM, so it was ended without a save"
