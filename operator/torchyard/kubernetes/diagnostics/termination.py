"""Why a pod is deleted or ended: by the cluster, or according to its containers."""

import re

import msgspec
from msgspec import Struct

from torchyard.api.exit_codes import EXIT_REASONS
from torchyard.api.formatting import ESCAPES
from torchyard.api.reasons import Reason
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.objects import ContainerStatus, KubePod, Terminated
from torchyard.reconcile.failures import MAX_LINE, MAX_LINES

MAX_MESSAGE = 500
# Conditions of type DisruptionTarget.
_DISRUPTIONS = {
    "PreemptionByScheduler": Reason.PREEMPTED_BY_PRIORITY,
    "DeletionByTaintManager": Reason.EVICTED,
    "EvictionByEvictionAPI": Reason.EVICTED,
    "TerminationByKubelet": Reason.EVICTED,
    "DeletionByPodGC": Reason.NODE_LOST,
}
# `status.reason` of pods that the kubelet ended itself.
_ENDED_BY_KUBELET = {
    "Evicted": Reason.EVICTED,
    "Terminated": Reason.EVICTED,  # graceful shutdown of the node
    "Shutdown": Reason.EVICTED,
    "NodeShutdown": Reason.EVICTED,
    "Preempting": Reason.PREEMPTED_BY_PRIORITY,
    "NodeLost": Reason.NODE_LOST,
}
# How Python names what was raised.
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)\b")
# What torchrun itself prints when a worker has ended: lines of its log, and its own traceback with a table below it.
_LAUNCHER = re.compile(
    r"^[EWI]\d{4} .*torch/distributed/.*\n"
    r"|^(?:Traceback \(most recent call last\):\n)?"
    r"  File \".*(?:torchrun|torch/distributed/(?:run|launcher/api)\.py)\", [\s\S]*",
    re.MULTILINE,
)
_CANNOT_START = frozenset({"StartError", "ContainerCannotRun"})
# How runc and crun report a program that the image does not have. Their messages for a busy or broken node differ, but
# may name missing files, too.
_NOT_THERE = re.compile(
    r"executable file .*not found|exec:? \S+: (?:stat \S+: )?no such file or directory", re.IGNORECASE
)
# How the kubelet words the eviction of a pod that filled its own volumes, which it would do on any node.
_OWN_LIMIT = re.compile(
    r"Usage of EmptyDir volume|ephemeral local storage usage exceeds|exceeded its local ephemeral storage limit"
)


class End(Struct, frozen=True, kw_only=True):
    """How a pod ended. `reason` may be empty: the exit code is enough."""

    reason: str = ""
    message: str = ""
    lines: tuple[str, ...] = ()  # the end of the log, if nothing else explains the end of the program
    exit_code: int | None = None
    started: str | None = None
    finished: str | None = None


class _Failure(Struct, frozen=True):
    exception: str | None = None
    message: str | None = None


class _AgentMessage(Struct, frozen=True):
    """The agent's termination message."""

    code: int
    failure: _Failure | None = None


def disruption(pod: KubePod) -> tuple[str, str]:
    """Return why the cluster takes or took the pod away; both empty: it does not."""
    target = pod.status.condition("DisruptionTarget")
    if target is not None and target.status == "True" and target.reason in _DISRUPTIONS:
        return _DISRUPTIONS[target.reason], _short(target.message)
    reason, message = pod.status.reason, _short(pod.status.message)
    if reason == Reason.EVICTED and _OWN_LIMIT.search(message):
        return Reason.DISK_LIMIT_EXCEEDED, message
    if reason in _ENDED_BY_KUBELET:
        return _ENDED_BY_KUBELET[reason], message
    # OutOfcpu, UnexpectedAdmissionError, TopologyAffinityError ...: the scheduler and the kubelet disagreed.
    states = [each.state for each in pod.status.container_statuses or ()]
    begun = any(state.running is not None or state.terminated is not None for state in states)
    refused = pod.status.phase == "Failed" and bool(reason) and not begun
    return (Reason.NODE_REFUSED, ": ".join(filter(None, (reason, message)))) if refused else ("", "")


def how(pod: KubePod) -> End:
    """Return how a pod of phase Succeeded or Failed ended: its trainer decides, not an injected container."""
    taken, words = disruption(pod)
    trainer = _terminated(pod.status.container_statuses, names.TRAINER)
    if trainer is None or trainer.reason == "ContainerStatusUnknown":
        return _not_begun(pod) or End(reason=taken or Reason.POD_LOST, message=words or _short(pod.status.message))
    reason, message = _container(pod, trainer)
    # The message of a container that did not start is the runtime's, not a log.
    known = Reason.of(reason)
    begun = known is None or not known.start_attempts
    untold = reason == Reason.AGENT_CRASHED or (_is_plain(pod) and trainer.exit_code and begun)
    return End(
        # A pod that was asked to terminate and then ended by itself ended because of that.
        reason=taken or reason,
        message=words or message,
        lines=_lines(trainer.message) if untold else (),
        exit_code=trainer.exit_code,
        started=trainer.started_at,
        finished=trainer.finished_at,
    )


def not_started(pod: KubePod, container: str, message: str) -> tuple[str, str]:
    """Return the reason of a container that the runtime could not start, and the runtime's message.

    Without an agent the program that the image lacks is the job's own command.
    """
    if container != names.TRAINER:
        return Reason.CONTAINER_CANNOT_START, _short(f"{container}: {message}")
    if _NOT_THERE.search(message):
        return Reason.COMMAND_NOT_FOUND if _is_plain(pod) else Reason.PYTHON_NOT_FOUND, _short(message)
    return Reason.CONTAINER_CANNOT_START, _short(message)


def _not_begun(pod: KubePod) -> End | None:
    """Return the container before the trainer that failed: the installer of the agent, or an injected one."""
    for each in pod.status.init_container_statuses or ():
        ended = each.state.terminated
        if ended is not None and ended.reason in _CANNOT_START:
            reason, message = not_started(pod, each.name, ended.message)
            return End(reason=reason, message=message, finished=ended.finished_at)
        if ended is not None and ended.exit_code:
            said = _last_line(ended.message) or f"exit code {ended.exit_code}"
            ours = each.name == names.AGENT
            return End(
                reason=Reason.AGENT_NOT_INSTALLED if ours else Reason.INIT_CONTAINER_FAILED,
                message=said if ours else f"{each.name}: {said}",
                lines=_lines(ended.message),
                finished=ended.finished_at,
            )
    return None


def _container(pod: KubePod, ended: Terminated) -> tuple[str, str]:
    if ended.reason == "OOMKilled":
        limit = next((each.resources for each in pod.spec.containers if each.name == names.TRAINER), None)
        memory = limit.limits.memory if limit is not None and limit.limits is not None else ""
        return Reason.OOM_KILLED, f"limit {memory}" if memory else "no limit was set, the node ran out of memory"
    if ended.reason in _CANNOT_START:
        return not_started(pod, names.TRAINER, ended.message)
    words = _agent_message(ended.message)
    if words is not None:
        failure = words.failure or _Failure()
        return "", _short(": ".join(filter(None, (failure.exception, failure.message))))
    if _is_plain(pod):  # what ended are the workers themselves
        return (Reason.WORKER_FAILED if 0 < ended.exit_code < 128 else ""), _telling_line(ended.message)
    # An agent that ends by itself leaves a message; signals come from outside, and known codes need no message.
    if ended.exit_code > 128:
        return "", _short(f"its container was ended by signal {ended.exit_code - 128}{_in_words(ended.message)}")
    crashed = 0 < ended.exit_code < 128 and ended.exit_code not in EXIT_REASONS.keys() - {1}
    return (Reason.AGENT_CRASHED if crashed else ""), _last_line(ended.message)


def _is_plain(pod: KubePod) -> bool:
    """Return whether it has no agent."""
    return bool(pod.spec.subdomain)


def _in_words(log: str) -> str:
    """Return the last line of its log; the cause is the signal, which came from outside."""
    said = _last_line(log)
    return f"; the last line of its log: {said}" if said else ""


def _terminated(statuses: tuple[ContainerStatus, ...] | None, name: str) -> Terminated | None:
    return next((each.state.terminated for each in statuses or () if each.name == name), None)


def _agent_message(message: str) -> _AgentMessage | None:
    try:
        return msgspec.json.decode(message, type=_AgentMessage)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _last_line(message: str) -> str:
    lines = [line for line in message.splitlines() if line.strip()]
    return _short(lines[-1]) if lines else ""


def _telling_line(log: str) -> str:
    """Return the most informative line at the end of a log: an exception, else a worker's last line with text."""
    raised = [line for line in log.splitlines() if _RAISED.match(line) and "torch.distributed.elastic" not in line]
    own = [line for line in _of_workers(log).splitlines() if any(map(str.isalnum, line))]
    return _short((raised or own or [""])[-1])


def _of_workers(log: str) -> str:
    """Return a log without the lines that torchrun adds."""
    return _LAUNCHER.sub("", log)


def _lines(log: str) -> tuple[str, ...]:
    """Return the last lines without control characters; indentation stays."""
    own = _of_workers(log)
    clean = ESCAPES.sub("", own if own.strip() else log).expandtabs(4).splitlines()
    lines = ("".join(filter(str.isprintable, line))[:MAX_LINE] for line in clean[-MAX_LINES:])
    return tuple(line for line in lines if line.strip())


def _short(message: str) -> str:
    return "".join(char if char.isprintable() else " " for char in " ".join(message.split()))[:MAX_MESSAGE]
