"""What the API server sent about one job and its pods, in its order, and which invariants that breaks."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import msgspec

from torchyard.api.status import MAX_STATUS_BYTES, State
from torchyard.reconcile.ports import Unavailable

ENDED = {"Succeeded", "Failed"}
IDLE = {state for state in State if state.at_rest}
TERMINAL = {state for state in State if state.terminal}
COUNTERS = {
    "round": lambda status: status.get("round", 0),
    "incarnation": lambda status: status.get("incarnation", 0),
    "restarts.total": lambda status: status.get("restarts", {}).get("total", 0),
    "restarts.counted": lambda status: status.get("restarts", {}).get("counted", 0),
    "nodes.lost": lambda status: status.get("nodes", {}).get("lost", 0),
    "observedGeneration": lambda status: status.get("observedGeneration", -1),
}


class Record:
    """One job.

    Attributes:
        job: as it is now, None: it is not, or no longer, there.
        pods: as they are now, by name.
        broken: invariants that did not hold at some moment.
        made, sent_away: pods that were created and that were deleted: their names by uid.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.job: dict[str, Any] | None = None
        self.pods: dict[str, dict[str, Any]] = {}
        self.made: dict[str, str] = {}
        self.sent_away: dict[str, str] = {}
        self.broken: list[str] = []
        self.history: list[dict[str, Any]] = []
        self._states: list[tuple[int, str]] = []  # by the version that they begin with
        self._created: list[tuple[int, str]] = []

    @property
    def status(self) -> dict[str, Any]:
        return (self.job or {}).get("status", {})

    def hear_job(self, kind: str, document: dict[str, Any]) -> None:
        """Take in an event of the job."""
        if kind == "DELETED":
            self.job = None
        else:
            before, self.job = self.status, document
            self.history.append(self.status)
            self._judge(before, self.status, int(document["metadata"]["resourceVersion"]))

    def hear_pod(self, kind: str, document: dict[str, Any]) -> None:
        """Take in an event of one of its pods."""
        name, version = document["metadata"]["name"], int(document["metadata"]["resourceVersion"])
        meta = document["metadata"]
        self.made[meta["uid"]] = name
        if kind == "DELETED" or meta.get("deletionTimestamp"):
            self.sent_away[meta["uid"]] = name
        if kind == "DELETED":
            self.pods.pop(name, None)
        else:
            new, self.pods[name] = name not in self.pods, document
            index = name.rpartition("-")[2]
            live = [each for each, pod in self.pods.items() if each.endswith(f"-{index}") and not _over(pod)]
            self._expect(len(live) <= 1, f"I1: two live pods of index {index}: {live}")
            if new:
                self._created.append((version, name))

    def needless(self) -> list[str]:
        """Pods that were created for a job that was over or suspended, in the API server's order: invariant I2."""
        found = []
        for version, name in self._created:
            state = next((state for since, state in reversed(self._states) if since <= version), "")
            if state in IDLE:
                found.append(f"I2: {name} was created although the job was {state}")
        return found

    def _judge(self, before: dict[str, Any], after: dict[str, Any], version: int) -> None:
        for what, of in COUNTERS.items():
            self._expect(of(after) >= of(before), f"{what} fell from {of(before)} to {of(after)}")
        if before.get("state") in TERMINAL:
            same = all(before.get(what) == after.get(what) for what in ("state", "reason", "completionTime", "round"))
            self._expect(same, f"I5: {before.get('state')}/{before.get('reason')} was not the end")
        self._states.append((version, after.get("state", "")))
        size = len(msgspec.json.encode(after))
        self._expect(size <= MAX_STATUS_BYTES, f"I8: a status of {size} bytes")
        self._expect(
            len({each["type"] for each in after.get("conditions", ())}) == len(after.get("conditions", ())),
            "a condition twice",
        )

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds and otherwise not in self.broken:
            self.broken.append(otherwise)


def _over(pod: dict[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") in ENDED


async def follow(api: Any, path: str, hear: Callable[[str, dict[str, Any]], None]) -> None:
    """Hand on every event of a collection, until cancelled; what no watch can tell any more, as a list tells it."""
    there: dict[str, dict[str, Any]] = {}

    def tell(kind: str, document: dict[str, Any]) -> None:
        there[document["metadata"]["uid"]] = document
        if kind == "DELETED":
            del there[document["metadata"]["uid"]]
        hear(kind, document)

    while True:
        listed = json.loads(await api.request("GET", path))
        now = {each["metadata"]["uid"]: each for each in listed["items"]}
        for uid in there.keys() - now.keys():
            tell("DELETED", there[uid])
        for uid, each in now.items():
            tell("MODIFIED" if uid in there else "ADDED", each)
        position = listed["metadata"]["resourceVersion"]
        with contextlib.suppress(Unavailable):
            while position:
                params = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": position}
                async for line in api.stream(path, params):
                    event = json.loads(line)
                    if event["type"] == "ERROR":  # the kind was changed, and with it its history is gone
                        position = ""
                        break
                    position = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        tell(event["type"], event["object"])
