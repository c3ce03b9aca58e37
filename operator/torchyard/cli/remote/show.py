"""What a person wants to know of a job of a cluster: `torchyard status` and `torchyard explain`."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchyard.api.formatting import span
from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob
from torchyard.api.states import State
from torchyard.cli.ending import last_lines
from torchyard.cli.remote.session import Remote
from torchyard.cli.show import attempts, cause_words, facts, head
from torchyard.cli.words import addressed, clean
from torchyard.cluster.local.run import Event
from torchyard.engine.view import Pod

MAX_PODS = 32
MAX_EVENTS = 10


def status(job: TrainingJob, pods: Sequence[Pod], remote: Remote, now: float) -> RenderableType:
    """State and sentence, progress, rounds, last lines of the failing rank, pods, what to type next."""
    parts: list[RenderableType] = [head(job, True, now, flags=remote.flags), Text(), facts(job, True, (), now)]
    if any(attempt.reason or attempt.cause for attempt in job.status.attempts):
        parts += [Text(), attempts(job.status.attempts)]
    said = last_lines(job) if job.status.state != State.SUCCEEDED else []
    if said:
        parts += [Text(), Text(said[0], style="dim"), *map(Text, said[1:])]
    if pods:
        parts += [Text(), _pods(pods, now)]
    parts += [Text(), Text.assemble(("next: ", "dim"), (next_command(job, remote), "bold"))]
    return Group(*parts)


def explain(job: TrainingJob, pods: Sequence[Pod], events: Sequence[Event], remote: Remote, now: float) -> str:
    """Why the job is where it is, from the verdict down to the evidence, each line one fact."""
    found = [f"{job.metadata.name} in {remote.where} is {job.status.state or 'not yet looked at'}."]
    if job.status.message:
        found.append(addressed(clean(job.status.message), job.metadata.name, remote.flags))
    elif not job.status.state:
        found.append(f"No operator has looked at it: `torchyard doctor{remote.flags}` says whether one runs.")
    found += _section("What to do", [addressed(step, job.metadata.name, remote.flags) for step in _advice(job)])
    found += _section("Failures so far", _failures(job))
    troubled = [pod for pod in pods if pod.reason or pod.phase not in {"Running", "Succeeded"}]
    found += _section("Pods", [_pod_line(pod, now) for pod in troubled[:MAX_PODS]])
    found += _section("Not as it should be", _conditions(job))
    latest = list(events)[-MAX_EVENTS:]
    lines = [f"{clean(each.time)}  {clean(each.reason)}: {clean(each.message)}" for each in latest]
    found += _section("What happened last", lines)
    waits = job.status.state == State.PENDING  # which has just been explained
    following = (
        f"torchyard wait {job.metadata.name}{remote.flags} --for running" if waits else next_command(job, remote)
    )
    return "\n".join([*found, "", f"next: {following}"])


def next_command(job: TrainingJob, remote: Remote) -> str:
    """The command that most likely comes next."""
    name, state = f"{job.metadata.name}{remote.flags}", job.status.state
    if state == State.SUSPENDED:
        return f"torchyard resume {name}"
    if not state:
        return f"torchyard doctor{remote.flags}"
    if state == State.PENDING:
        return f"torchyard explain {name}"
    return f"torchyard logs {name}" + ("" if state.terminal else " -f")


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _advice(job: TrainingJob) -> list[str]:
    _, _, own = clean(job.status.message).rpartition("); ")
    if own and own != clean(job.status.message):
        return [own]  # the message may name a better step than the reason does
    known = Reason.of(job.status.reason)
    return [known.next_step] if known is not None and known.next_step else []


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


def _pods(pods: Sequence[Pod], now: float) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("pod", "node", "phase", "age", "why"):
        table.add_column(name, no_wrap=name != "why")
    for pod in pods[:MAX_PODS]:
        why = ": ".join(filter(None, (clean(pod.reason), clean(pod.message))))
        phase = "Terminating" if pod.deleting else pod.phase
        table.add_row(clean(pod.name), clean(pod.node), phase, span(now - pod.created) if pod.created else "", why)
    if len(pods) > MAX_PODS:
        table.add_row(f"and {len(pods) - MAX_PODS} more")
    return table


def _pod_line(pod: Pod, now: float) -> str:
    where = f" on {clean(pod.node)}" if pod.node else ""
    age = f" for {span(now - pod.created)}" if pod.created and pod.alive else ""
    why = ": ".join(filter(None, (clean(pod.reason), clean(pod.message))))
    return f"{clean(pod.name)}{where} is {pod.phase}{age}" + (f": {why}" if why else "")
