"""Whether a life with a fault in it came to the same as one without: its end, what was created and what deleted."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.cluster.plans import calls
from tests.cluster.plans.record import Record
from tests.cluster.plans.recorder import Recorder

ABSENT = "(absent)"
# When, and which of several alike: never the same twice.
PASSING = (
    "Time",
    "time",
    "uid",
    "members",
    "masterPort",
    "goodput",
    "gpuSeconds",
    "secondsLost",
    "columns",
    "imagePull",
    "events",
)

# A deletion by force is two events within a moment: on which of them an operator acts is chance.
ONE_AND_THE_SAME = ("its pod is being deleted", "its pod no longer exists")


class Outcome:
    """What a life left behind.

    Args:
        record: what the API server sent.
        recorder: what the operator asked of it.
    """

    def __init__(self, record: Record, recorder: Recorder) -> None:
        self.job = name = record.name
        told = calls.anonymous(json.dumps(record.status), name).replace(*ONE_AND_THE_SAME)
        self.end = dict(_leaves(json.loads(told)))
        self.end["job"] = "there" if record.job is not None else "gone"
        pods = {calls.anonymous(pod, name): each["status"].get("phase") for pod, each in record.pods.items()}
        self.end["pods"] = json.dumps(pods, sort_keys=True)
        # Not what the operator was told: of calls under way when it is killed it is told nothing.
        self.created = Counter(calls.anonymous(pod, name) for pod in record.made.values())
        self.deleted = Counter(calls.anonymous(pod, name) for pod in record.sent_away.values())
        done = [(what, code) for what, code in recorder.done if code < 300]
        self.created.update(what for what, _ in done if what.startswith("create service"))
        self.events = Counter(what for what, _ in done if what.startswith("event "))


class Reference:
    """What two undisturbed lives have in common.

    Args:
        one, other: their outcomes.
        seconds: that they took.
    """

    def __init__(self, one: Outcome, other: Outcome, seconds: float) -> None:
        self.one, self.seconds = one, seconds
        both = one.end.keys() | other.end.keys()
        self.masked = {what for what in both if one.end.get(what) != other.end.get(what)}
        if one.created != other.created or one.deleted != other.deleted:
            raise ValueError(
                f"two undisturbed lives differ: {one.created} {one.deleted} {other.created} {other.deleted}"
            )

    def differences(self, now: Outcome, *, unseen: bool = False) -> list[str]:
        """What is not as it should be, a sentence each.

        Args:
            now: what came of the life this time.
            unseen: whether something happened that no process saw: its traces may say less about the cause.
        """
        found = []
        for what in sorted((self.one.end.keys() | now.end.keys()) - self.masked):
            should, is_ = self.one.end.get(what, ABSENT), now.end.get(what, ABSENT)
            words = what.endswith(("message", ".cause.exception"))
            less = unseen and (words or (".cause." in what and is_ == ABSENT))
            if should != is_ and not less:
                found.append(f"{what}: {is_} instead of {should}")
        found += _counted("create", now.created, self.one.created)
        found += _counted("delete", now.deleted, self.one.deleted)
        # One may be lost with its operator, or refused.
        found += [
            f"{what}: {times} times" for what, times in now.events.items() if times > max(1, self.one.events[what])
        ]
        return found


def _counted(verb: str, is_: Counter[str], should: Counter[str]) -> list[str]:
    return [
        f"{what}: {is_[what]} instead of {should[what]}"
        for what in sorted(is_.keys() | should.keys())
        if is_[what] != should[what]
    ]


def _leaves(value: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    """Every figure and word of a document by its path, but those that tell a moment."""
    if path.endswith(PASSING):
        return
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _leaves(each, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            key = each.get("type", number) if isinstance(each, dict) else number
            yield from _leaves(each, f"{path}[{key}]")
    else:
        yield path, value
