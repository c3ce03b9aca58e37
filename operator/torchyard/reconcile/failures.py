"""The failures of members of a round, their first cause, and its evidence."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from torchyard.api.exit_codes import CLASSES, EXIT_REASONS, SHELL_CODES, ExitCode, reason_of_exit
from torchyard.api.reasons import Reason
from torchyard.api.status import Cause, TrainingJobStatus
from torchyard.api.values import Duration
from torchyard.reconcile.observed import Failure, Pod, RoundExit, View

MAX_EXCEPTION = 600
MAX_LINE = 400
MAX_LINES = 20
MAX_EVENT, MAX_EVENTS = 300, 4
_NOT_FETCHED = (Reason.INPUT_NOT_FETCHED, Reason.CODE_NOT_FETCHED, Reason.REQUIREMENTS_NOT_INSTALLED)


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of one member of a round. `secondary`: a consequence of another member's failure."""

    rank: int
    state: Literal["running", "done", "failed"]
    reason: Reason = Reason.TRAINING
    code: int | None = None
    permanent: bool = False
    counted: bool = True
    secondary: bool = False
    unexplained: bool = False  # it was stopped from outside, and the cause is not known yet
    lost_pod: bool = False
    time: float = 0.0
    step: int | None = None
    message: str = ""
    next_micro_batch: int | None = None  # out of GPU memory only
    exit_code_only: bool = False  # the program gave no exception and no message
    start_attempts: int = 0  # its container never started; this many times in a row end the job
    cause: Cause = Cause()


def classified(view: View, ended: RoundExit) -> bool:
    """Return whether an exit code has the meaning of the table of exit codes.

    75 also has it if the gang was asked to save: the program of another pod may have passed the request on.
    """
    if view.job.spec.trainer is not None or (ended.failure is not None and ended.failure.classified):
        return True
    if ended.code != ExitCode.PREEMPTED:
        return False
    known = (agent.exit for agent in view.agents.values() if agent.exit is not None)
    asked = any(each.round == ended.round and (each.asked or each.saved) for each in known)
    staying = {pod.uid for pod in view.pods if pod.alive and not pod.deleting}
    return asked or not staying.issuperset(view.job.status.rendezvous.members)


def pod_failed(view: View, node_rank: int, pod: Pod) -> Outcome:
    """Return the outcome of a pod that ended without a report of its agent; the exit code is the agent's, if any."""
    code = pod.exit_code
    of_pod = Reason.of(pod.reason)
    known = EXIT_REASONS.get(code) if code is not None else None
    if code in CLASSES and view.job.spec.launcher.kind == "none":
        known = None
    reason = of_pod
    decided = known is not None and (known.permanent or code == ExitCode.PREEMPTED or known in _NOT_FETCHED)
    if reason is None and decided:
        reason = known
    deleted = pod.deleting and code in {None, ExitCode.KILLED, ExitCode.TERMINATED}
    start_attempts = reason.start_attempts if reason in {of_pod, *_NOT_FETCHED} and reason else 0
    reason = reason or (Reason.POD_LOST if deleted else Reason.POD_FAILED)
    return Outcome(
        rank=node_rank,
        state="failed",
        reason=reason,
        code=code,
        permanent=not start_attempts and known is not None and known.permanent,
        counted=reason.counted and not start_attempts,
        lost_pod=True,
        time=pod.finished or view.now,
        message=pod.message,
        exit_code_only=not pod.message,
        start_attempts=start_attempts,
        cause=Cause(
            pod=pod.name,
            node=pod.node,
            exit_code=code,
            class_=reason,
            exception=pod.message[:MAX_EXCEPTION],
            lines=[line[:MAX_LINE] for line in pod.lines[-MAX_LINES:]],
        ),
    )


def without_old_mark(view: View, pod: Pod) -> Pod:
    """Return the pod without `OOMKilled` if an earlier round has recorded it for this pod.

    Kubernetes keeps calling a container OOMKilled after one of its processes ran out of memory, however it ends later;
    a second lack of memory cannot be distinguished.
    """
    causes = (each.cause for each in view.job.status.attempts)
    known = any(each is not None and (each.class_, each.pod) == (Reason.OOM_KILLED, pod.name) for each in causes)
    if not known or pod.reason != Reason.OOM_KILLED:
        return pod
    return replace(
        pod, reason="", message="its container ended; it is still marked OOMKilled because of an earlier round"
    )


def gang_differs(unlike: str, now: float) -> Outcome:
    """Return the outcome of a round that cannot open: its members do not run the same thing."""
    return Outcome(
        rank=0,
        state="failed",
        reason=Reason.GANG_DIFFERS,
        counted=False,
        start_attempts=Reason.GANG_DIFFERS.start_attempts,
        time=now,
        message=unlike,
        cause=Cause(class_=Reason.GANG_DIFFERS, exception=unlike[:MAX_EXCEPTION]),
    )


def first(outcomes: tuple[Outcome, ...]) -> Outcome:
    """Return the earliest failure that is not a consequence of another; if all are, the earliest."""
    failed = [each for each in outcomes if each.state == "failed"]
    return min(failed, key=lambda each: (each.secondary, each.time, each.rank))


def evidence(cause: Outcome) -> str:
    """Return the evidence for a sentence: rank, pod, node, exit code, exception."""
    known = cause.cause
    if cause.reason == Reason.WORKER_FAILED and cause.exit_code_only:
        return ", ".join((*_where(known), _bare_exit(known.exception, known.exit_code)))
    parts = [
        *_where(known),
        f"exit code {known.exit_code}" if known.exit_code is not None else "",
        (known.exception or cause.message).strip()[:MAX_EXCEPTION],
    ]
    return ", ".join(dict.fromkeys(part for part in parts if part))


def _where(cause: Cause) -> list[str]:
    named = (("rank", cause.rank), ("pod", cause.pod or None), ("node", cause.node or None))
    return [f"{word} {value}" for word, value in named if value is not None]


def _bare_exit(said: str, code: int | None) -> str:
    """Return the evidence for a program that ended without an exception: only the exit code that it chose."""
    known = said or f"exit code {code}"  # the agent's description names the codes of shells
    meaning = "" if code in {None, 1, *SHELL_CODES} else ", whose meaning only the program knows"
    return f"{known}{meaning}; no exception was reported"


def worker_failed(node_rank: int, pod: Pod | None, ended: RoundExit, *, classified: bool) -> Outcome:
    """Return the outcome of a member whose workers failed, as its agent reports; `classified`: see `classified`."""
    of_code = reason_of_exit(ended.code, classified=classified)
    failure = ended.failure or Failure()
    preempted = (ended.code == ExitCode.PREEMPTED and classified) or (
        ended.asked and ended.code in {ExitCode.KILLED, ExitCode.TERMINATED}
    )
    reason = Reason.PREEMPTED if preempted else Reason.OOM_KILLED if failure.out_of_memory else of_code
    taken_by = None  # what is known of the end of the pod itself says more than that its workers were asked to stop
    if pod is not None:
        taken_by = Reason.POD_LOST if pod.reason == Reason.POD_LOST else pod.displaced
    taken = taken_by is not None or (pod is not None and pod.deleting)
    # A kubelet reports an eviction only after the containers have ended.
    silent = pod is not None and pod.alive and not (pod.deleting or pod.reason)
    raised = failure.exception or failure.message
    if failure.exception and failure.message and not failure.message.startswith(failure.exception):
        raised = f"{failure.exception}: {failure.message}"
    if preempted and pod is not None and taken_by is not None:
        reason, raised = taken_by, pod.message
    elif preempted and not raised:
        raised = "they saved first" if ended.saved else "they had not saved"
    exit_code_only = failure.exit_code_only or not raised
    return Outcome(
        rank=node_rank,
        state="failed",
        reason=reason,
        code=ended.code,
        permanent=of_code.permanent,
        counted=reason.counted if preempted else of_code.counted,
        unexplained=reason == Reason.PREEMPTED and ended.asked and silent,
        # Consequences: exit 76, workers that were stopped, and workers that saved because another pod was asked to.
        secondary=failure.secondary
        or (ended.code == ExitCode.PEER_LOST and classified)
        or (ended.asked and not ended.saved and not taken)
        or (ended.code == ExitCode.PREEMPTED and classified and not ended.asked),
        lost_pod=pod is None or not pod.alive,
        time=failure.time or ended.time,
        step=failure.step,
        message=failure.message,
        next_micro_batch=failure.next_micro_batch if reason == Reason.GPU_OUT_OF_MEMORY else None,
        exit_code_only=exit_code_only,
        cause=Cause(
            rank=failure.rank,
            pod=pod.name if pod is not None else "",
            node=pod.node if pod is not None else "",
            exit_code=ended.code if failure.code is None else failure.code,
            class_=reason,
            exception=raised[:MAX_EXCEPTION],
            lines=[line[:MAX_LINE] for line in ended.lines[-MAX_LINES:]],
        ),
    )


def lost(node_rank: int, pod: Pod | None, reason: Reason, message: str, now: float) -> Outcome:
    """Return the outcome of a member whose pod or agent is lost; `message` is the evidence."""
    return Outcome(
        rank=node_rank,
        state="failed",
        reason=reason,
        counted=reason.counted,
        lost_pod=reason != Reason.AGENT_RESTARTED,
        time=now,
        message=message,
        cause=Cause(
            pod=pod.name if pod is not None else "",
            node=pod.node if pod is not None else "",
            class_=reason,
            exception=message,
        ),
    )


def with_pod_events(view: View, status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with the events of pods that ended or are gone, at the newest round whose cause each is."""
    found = {pod.name: pod.events for pod in view.pods if pod.events and not pod.alive}
    if not found:
        return status
    attempts = list(status.attempts)
    for index in reversed(range(len(attempts))):
        cause = attempts[index].cause
        events = found.pop(cause.pod, ()) if cause is not None else ()
        if cause is not None and events and not cause.events:
            shown = [event[:MAX_EVENT] for event in events[-MAX_EVENTS:]]
            attempts[index] = replace(attempts[index], cause=replace(cause, events=shown))
    return status if attempts == status.attempts else replace(status, attempts=attempts)


def overdue(limit: Duration, phase: str, now: float, *, nodes: int) -> Outcome:
    """Return the outcome of a round whose first step is overdue."""
    silent = "no worker has reported"
    if nodes > 1:
        silent += ", and those of several nodes start only once their pods reach each other"
    message = f"no step within {limit}, " + (f"rank 0 is in phase {phase}" if phase else silent)
    return Outcome(
        rank=0,
        state="failed",
        reason=Reason.START_TIMEOUT,
        time=now,
        message=message,
        cause=Cause(class_=Reason.START_TIMEOUT, exception=message),
    )
