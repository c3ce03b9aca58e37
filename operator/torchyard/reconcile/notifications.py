"""Transitions of a job that people are notified of, derived from its persisted status, and their CloudEvents.

A status contains the transitions that led to it: its state, and the rounds that failed. A process that starts later
derives the same notifications with the same ids; by the id, a receiver drops those that it has already.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from torchyard.api.reasons import Reason, say
from torchyard.api.resource import TrainingJob
from torchyard.api.status import Cause, State, TrainingJobStatus
from torchyard.api.values import Time, encode, rfc3339

STATES = (State.RUNNING, State.RECOVERING, State.SUSPENDED, State.SUCCEEDED, State.FAILED)
DEFAULT_STATES = STATES[1:]
CONTENT_TYPE = "application/cloudevents+json"
TYPE = "dev.torchyard.trainingjob"
PLACES = ("{namespace}", "{name}", "{cluster}")
"""What a link may contain."""


class Notification(Struct, frozen=True, kw_only=True):
    """One transition of a job.

    Attributes:
        id: the same whenever it is derived.
        state: that the job went to; Recovering for each round that failed.
        time: unix seconds.
        reason: code of the reason.
        message: one sentence.
        round: newest round, or the one that failed.
        step: newest optimizer step then.
        cause: first cause of a failure.
    """

    id: str
    state: State
    time: float
    reason: Reason
    message: str
    round: int
    step: int
    cause: Cause | None = None


def notifications_of(uid: str, status: TrainingJobStatus) -> Iterator[Notification]:
    """Yield the transitions that a status proves, oldest first."""
    failed = status.state == State.FAILED
    newest = status.attempts[-1] if status.attempts else None
    for attempt in status.attempts:
        if attempt.cause is not None and attempt.end_time is not None and not (failed and attempt is newest):
            yield Notification(
                id=f"{uid}/{State.RECOVERING.value}/{attempt.round}/{int(attempt.end_time)}",
                state=State.RECOVERING,
                time=attempt.end_time,
                reason=attempt.reason,
                message=say(attempt.reason, attempt.cause.exception),
                round=attempt.round,
                step=attempt.end_step,
                cause=attempt.cause,
            )
    if status.state in STATES and status.state != State.RECOVERING:
        yield Notification(
            id=f"{uid}/{status.state.value}/{status.round}/{int(_since(status))}",
            state=status.state,
            time=_since(status),
            reason=status.reason,
            message=status.message,
            round=status.round,
            step=status.progress.step,
            cause=newest.cause if failed and newest is not None else None,
        )


def new_notifications(uid: str, before: TrainingJobStatus, after: TrainingJobStatus) -> list[Notification]:
    """Return the transitions that `after` proves and `before` does not, oldest first."""
    if (before.state, before.attempts) == (after.state, after.attempts):
        return []
    known = {each.id for each in notifications_of(uid, before)}
    same = before.state if before.state != State.RECOVERING else None
    return [each for each in notifications_of(uid, after) if each.id not in known and each.state != same]


def _since(status: TrainingJobStatus) -> float:
    if status.state.terminal and status.completion_time is not None:
        return status.completion_time
    kind = "Running" if status.state == State.RUNNING else "Ready"
    times = [each.last_transition_time for each in status.conditions if each.type == kind]
    return max((time for time in times if time is not None), default=status.last_update_time or Time(0.0))


def cloud_event(
    job: TrainingJob, notification: Notification, *, link: str = "", cluster: str = ""
) -> Mapping[str, Any]:
    """Return the CloudEvent (1.0, JSON format) of a notification.

    Args:
        job: whose transition it is.
        notification: of the transition.
        link: URL with `PLACES`; empty: none.
        cluster: name of the cluster; empty: this machine, or a site with one cluster.
    """
    namespace, name = job.key
    source = "".join(f"/{kind}/{quote(text, safe='')}" for kind, text in _path(cluster, namespace, name))
    data: dict[str, Any] = {
        "cluster": cluster,
        "namespace": namespace,
        "name": name,
        "uid": job.metadata.uid,
        "state": notification.state.value,
        "reason": notification.reason,
        "message": notification.message,
        "round": notification.round,
        "step": notification.step,
    }
    if notification.cause is not None:
        # The last lines of a program may contain anything; who may read the job finds them in its status.
        data["cause"] = msgspec.structs.replace(notification.cause, lines=[], events=[])
    if link:
        for place, text in zip(PLACES, (namespace, name, cluster), strict=True):
            link = link.replace(place, quote(text, safe=""))
        data["link"] = link
    return {
        "specversion": "1.0",
        "id": notification.id,
        "source": source,
        "type": f"{TYPE}.{notification.state.value.lower()}",
        "subject": f"{namespace}/{name}",
        "time": rfc3339(notification.time),
        "datacontenttype": "application/json",
        "data": data,
    }


def _path(cluster: str, namespace: str, name: str) -> Iterable[tuple[str, str]]:
    yield from [("clusters", cluster)] if cluster else []
    yield from (("namespaces", namespace), ("trainingjobs", name))


def encoded(event: Mapping[str, Any]) -> bytes:
    """Return a CloudEvent as it is sent."""
    return msgspec.json.encode(event, enc_hook=encode)


def states_of(text: str) -> tuple[State, ...]:
    """Return the states of a list with commas.

    Raises:
        ValueError: there are no notifications of one of them.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in [state.value for state in STATES]]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(state.value for state in STATES)}")
    return tuple(state for state in STATES if state.value in words)
