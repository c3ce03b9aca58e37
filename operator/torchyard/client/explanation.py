"""Explain a job's state: what to do, failures, pods, conditions and the newest events."""

from collections.abc import Sequence

from msgspec import Struct

from torchyard.api import queue_position
from torchyard.api.formatting import addressed, clean, clip
from torchyard.api.names import REPAIRED
from torchyard.api.reasons import Reason, timeout_advice
from torchyard.api.resource import TrainingJob
from torchyard.api.status import Attempt, State, is_preempted
from torchyard.api.values import plural, span
from torchyard.local.run import Event
from torchyard.reconcile.observed import Pod

MAX_PODS = 32
MAX_EVENTS = 10
MAX_LINES = 20
LONG_PULL_SECONDS = 10.0


class Section(Struct, frozen=True):
    """Facts of one kind, a line each."""

    title: str
    lines: tuple[str, ...]


class Explanation(Struct, frozen=True, kw_only=True, rename="camel"):
    """The cause of a job's state; `print` shows all of it.

    Attributes:
        job: name of the job.
        state: of the job.
        reason: reason code of the state; empty if there is no problem.
        sentence: the cause.
        sections: the evidence: what to do, failures so far, pods, conditions, the newest events.
        next_command: the command that most likely comes next.
    """

    job: str
    state: State
    reason: Reason
    sentence: str
    sections: tuple[Section, ...]
    next_command: str

    def __str__(self) -> str:
        blocks = [f"{each.title}:\n" + "\n".join(f"  {line}" for line in each.lines) for each in self.sections]
        return "\n\n".join([self.sentence, *blocks, f"next: {self.next_command}"])

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:  # noqa: ARG002 -- the protocol of IPython
        printer.text(str(self))  # type: ignore[attr-defined]


def explanation(  # noqa: PLR0917 -- what is known of a job, and where it is
    job: TrainingJob, pods: Sequence[Pod], events: Sequence[Event], where: str, flags: str, now: float
) -> Explanation:
    """Explain a job (pure).

    Args:
        job: with its status.
        pods: of the job; empty on one machine.
        events: oldest first.
        where: the location as text: `on this machine`, `in namespace team`.
        flags: flags that proposed commands need for this location.
        now: unix seconds.
    """
    from torchyard.sweeps.trials import role_of

    name, status = job.metadata.name, job.status
    sentences = [f"{name} {where} is {status.state or 'not yet looked at'}."]
    trial = role_of(job)
    if trial is not None:
        sentences.append(clean(trial.sentence))
    decided = trial is not None and trial.decided
    if status.message and not decided:  # it says of any suspended job how to resume it
        sentences.append(addressed(clean(status.message), name, flags))
    if job.spec.is_delegated:
        sentences.append(
            f"{clean(str(job.spec.managed_by))} runs it (spec.managedBy), not the operator of this cluster."
        )
    elif not status.state:
        sentences.append(f"No operator has looked at it: `torchyard doctor{flags}` says whether one runs.")
    troubled = [pod for pod in pods if pod.reason or pod.phase not in {"Running", "Succeeded"}]
    sections = (
        Section("What to do", tuple(addressed(step, name, flags) for step in _advice(job)) if not decided else ()),
        Section("Gang", tuple(_gang(job, now))),
        Section("Warnings", tuple(_warnings(job))),
        Section("Images", tuple(_pull(job))),
        Section("Failures so far", tuple(_failures(job))),
        Section("Kept to look at", tuple(_kept(job, flags))),
        Section("Nodes that its pods avoid", tuple(_avoided(job, now))),
        Section("Pods", tuple(_pod_line(pod, now) for pod in troubled[:MAX_PODS])),
        Section("Not as it should be", tuple(_conditions(job))),
        Section(
            "What happened last",
            tuple(
                f"{clean(each.time)}  {clean(each.reason)}: {clean(each.message)}"
                for each in list(events)[-MAX_EVENTS:]
            ),
        ),
    )
    waits = (
        job.spec.is_delegated or status.state in {State.PENDING, State.QUEUED} or is_preempted(status)
    )  # which has just been explained
    following = f"torchyard wait {name}{flags} --for running" if waits else next_command(job, flags)
    if trial is not None and decided:
        following = f"torchyard sweep show {trial.sweep}{flags}"
    return Explanation(
        job=name,
        state=status.state,
        reason=status.reason,
        sentence="\n".join(sentences),
        sections=tuple(section for section in sections if section.lines),
        next_command=following,
    )


def next_command(job: TrainingJob, flags: str) -> str:
    """Return the command that most likely comes next for a controlled job."""
    name, state = f"{job.metadata.name}{flags}", job.status.state
    if state == State.SUSPENDED and not is_preempted(job.status):
        return f"torchyard resume {name}"
    if not state:
        return f"torchyard doctor{flags}"
    if state in {State.PENDING, State.QUEUED} or is_preempted(job.status):
        return f"torchyard explain {name}"
    return f"torchyard logs {name}" + ("" if state.terminal else " -f")


def cause_words(attempt: Attempt) -> str:
    """`rank 1 on cvrp-0-1 (node-1), exit 137: RuntimeError: ...`."""
    cause = attempt.cause
    if cause is None:
        return ""
    words = [f"rank {cause.rank}"] if cause.rank is not None else []
    words += [f"on {clean(cause.pod)}"] if cause.pod else []
    words += [f"({clean(cause.node)})"] if cause.node else []
    where = " ".join(words)
    what = [f"exit {cause.exit_code}"] if cause.exit_code is not None else []
    text = ", ".join(([where] if where else []) + what)
    exception = clip(clean(cause.exception.replace("\n", " ")), 200)
    return f"{text}: {exception}" if exception and text else text or exception


def last_lines(job: TrainingJob) -> list[str]:
    """Return the last lines of the rank that failed first; a rank that saved on request did not fail."""
    for attempt in reversed(job.status.attempts):
        if attempt.cause is not None and attempt.cause.lines and attempt.cause.class_ != Reason.PREEMPTED:
            who = f"rank {attempt.cause.rank}" if attempt.cause.rank is not None else "the failing rank"
            lines = [f"  {clean(line)}" for line in attempt.cause.lines[-MAX_LINES:]]
            return [f"{who}, round {attempt.round}:", *lines]
    return []


def _advice(job: TrainingJob) -> list[str]:
    """Return the next step for the reason, or for its origin: the first cause, or the reason that pods waited for."""
    status = job.status
    if status.reason is Reason.PENDING_TIMEOUT:
        return [timeout_advice(status.rendezvous.waited_for)]
    cause = status.attempts[-1].cause if status.attempts else None
    reasons = [cause.class_] if status.reason.points_to_cause and cause is not None else []
    return [reason.next_step for reason in (*reasons, status.reason) if reason.next_step][:1]


def _gang(job: TrainingJob, now: float) -> list[str]:
    """Return what a gang scheduler says, and the place in its queue; nothing where pods are placed one by one."""
    gang = job.status.gang
    if gang is None or gang.enforced_by in {"torchyard", "none"} or not gang.message:
        return []
    said = f"{clean(gang.enforced_by)}: {'admitted' if gang.admitted else 'waits'}, {clean(gang.message)}"
    place = queue_position.words(gang, now)
    return [said, place] if place else [said]


def _warnings(job: TrainingJob) -> list[str]:
    """Return the warnings of the newest round, and that slow ranks are not looked for where that is not possible."""
    pace = job.status.pace
    lines = [clean(text) for text in job.status.warnings]
    if pace is not None and pace.ranks > 1 and pace.compute_seconds is None and job.status.state == State.RUNNING:
        lines.append("slow ranks cannot be found: how long ranks wait for each other is not known in this program")
    return lines


def _pull(job: TrainingJob) -> list[str]:
    """Return the slowest pull of an image, if it was long."""
    pull = job.status.image_pull
    if pull is None or pull.seconds < LONG_PULL_SECONDS or job.status.state.terminal:
        return []
    return [f"{clean(pull.image)} was pulled in {span(pull.seconds)}"]


def _avoided(job: TrainingJob, now: float) -> list[str]:
    """Return the nodes that failed this job or others, and how to declare one repaired."""
    nodes = job.status.avoided_nodes
    if not nodes or job.status.state.terminal:
        return []
    lines = [
        f"{clean(each.node)}: {clean(each.reason)}, {plural(each.failures, 'failure')}"
        + (f", the last one {span(now - each.time)} ago" if each.time is not None else "")
        for each in nodes
    ]
    node = clean(nodes[0].node)
    return [*lines, f"repaired? kubectl annotate node {node} --overwrite {REPAIRED}=$(date -u +%FT%TZ)"]


def _failures(job: TrainingJob) -> list[str]:
    lines = []
    for attempt in job.status.attempts:
        if attempt.cause is not None:  # a round that was completed or suspended is no failure
            words = cause_words(attempt)
            charged = ", charged to the budget" if attempt.counted else ""
            lines.append(
                f"round {attempt.round}, steps {attempt.start_step} to {attempt.end_step}: {clean(attempt.reason)}"
                + (f", {words}" if words else "")
                + charged
            )
            lines += [f"  event: {clean(each)}" for each in attempt.cause.events]
    return lines + [f"  {line}" for line in last_lines(job)[1:]] if job.status.state != State.SUCCEEDED else lines


def _conditions(job: TrainingJob) -> list[str]:
    if job.status.state.ready:
        return []
    wrong = {"Admitted": "False", "PodsReady": "False", "Stalled": "True", "Failed": "True", "Recovering": "True"}
    return [
        f"{condition.type} is {condition.status}: {clean(condition.message) or condition.reason}"
        for condition in job.status.conditions
        if wrong.get(condition.type) == condition.status
    ]


def _kept(job: TrainingJob, flags: str) -> list[str]:
    """Return which failed pod stays, until when, and the commands that show its output and files."""
    kept, name = job.status.kept_pod, job.metadata.name
    if kept is None:
        return []
    until = f" until {kept.until}" if kept.until is not None else ""
    return [
        f"{clean(kept.name)}, failed in round {kept.round}{until}: torchyard logs {name}{flags} --round {kept.round}",
        f"its files: torchyard fetch {name}{flags} failures",
    ]


def _pod_line(pod: Pod, now: float) -> str:
    where = f" on {clean(pod.node)}" if pod.node else ""
    age = f" for {span(now - pod.created)}" if pod.created and pod.alive else ""
    why = ": ".join(filter(None, (clean(pod.reason), clean(pod.message))))
    return f"{clean(pod.name)}{where} is {pod.phase}{age}" + (f": {why}" if why else "")
