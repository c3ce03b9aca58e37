"""A cluster with one sweep: an API server's part that its controller writes to, and jobs that train at any pace."""

import copy
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from torchyard.api.names import TRIAL
from torchyard.api.validation.parse import parse_job
from torchyard.api.values import rfc3339
from torchyard.app.sweep_controller import SweepController
from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import AlreadyExists, Conflict, Details, NotFound, Rejected
from torchyard.kubernetes.sweeps import Sweeps, Trials
from torchyard.kubernetes.trial_provenance import TrialProvenance
from torchyard.sweeps.events import SweepEvent
from torchyard.sweeps.outcomes import outcomes_of, rungs
from torchyard.sweeps.parse import parse_sweep
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.sampler import Sampler
from torchyard.sweeps.spec import EarlyStopping
from torchyard.sweeps.trials import trial_of

NOW = 1_795_000_000.0
CREATED = "2026-11-18T11:06:40Z"  # NOW
KEY = ("research", "tune")
GRID = {
    "objective": {"metric": "score", "goal": "maximize"},
    "algorithm": {"name": "grid"},
    "earlyStopping": {"name": "asha"},
    "parameters": [{"path": "trainer.params.lr", "float": {"min": 0.0, "max": 0.7, "step": 0.1}}],
    "maxTrials": 8,
    "parallelTrials": 2,
    "jobTemplate": {"spec": {"trainer": {"name": "x:Y"}}},
}
RUNGS = [*rungs(EarlyStopping(name="asha")), 100]
"""Percents at which trials are judged, and the end."""


class Killed(BaseException):
    """The operator is gone, whatever it was doing."""


class World:
    """The objects as the API server keeps them. A kill comes before a write, which is after the one before it.

    Args:
        spec: of the sweep, over that of `GRID`.
        score: value of a trial by its learning rate and percent; None: it reports none.
        rejects: whether the API server rejects a job that has this spec.

    Attributes:
        history: all that a watch sends, from the first object on: the kind of event, the kind of object, and its JSON.
        changed: called after each event.
        fails: names of trials that fail.
        fail_at: percent at which they do.
    """

    def __init__(
        self,
        score: Callable[[float, int], float | None] | None = None,
        sampler: Sampler | None = None,
        rejects: Callable[[dict[str, Any]], bool] = lambda _spec: False,
        **spec: Any,
    ) -> None:
        self.score, self.sampler, self.rejects, self.now = score or noisy, sampler, rejects, NOW
        self.events: list[tuple[str, str, str]] = []
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.writes: list[tuple[str, str]] = []
        self.history: list[tuple[str, str, str]] = []
        self.changed: list[Callable[[], None]] = []
        self.fails: set[str] = set()
        self.fail_at = 100
        self.kill_at: int | None = None
        self.provenance = TrialProvenance(lambda: self.now)
        self.version = 1
        sweep = {"metadata": {"name": KEY[1], "creationTimestamp": CREATED}, "spec": {**copy.deepcopy(GRID), **spec}}
        self.put("trainingsweeps", sweep)

    def put(self, plural: str, document: dict[str, Any]) -> dict[str, Any]:
        """Store an object as new."""
        self.version += 1
        meta = document["metadata"]
        meta |= {
            "namespace": KEY[0],
            "uid": f"uid-{self.version}",
            "resourceVersion": str(self.version),
            "generation": 1,
            "creationTimestamp": rfc3339(self.now),
        }
        self.objects[plural, meta["name"]] = document
        self._happened("ADDED", plural, document)
        return document

    def sweep(self) -> dict[str, Any]:
        return self.objects["trainingsweeps", KEY[1]]

    def edit(self, plural: str, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change an object as another client would."""
        document = self.objects[plural, name]
        before = copy.deepcopy(document.get("spec"))
        change(document)
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        document["metadata"]["generation"] += document.get("spec") != before
        self._happened("MODIFIED", plural, document)

    def delete(self, plural: str, name: str) -> None:
        """Delete an object for good."""
        document = self.objects.pop((plural, name))
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self._happened("DELETED", plural, document)

    def _happened(self, kind: str, plural: str, document: dict[str, Any]) -> None:
        self.history.append((kind, plural, json.dumps(document)))
        for each in self.changed:
            each()

    # The API server's part.

    async def request(
        self, verb: str, path: str, *, body: Any = None, params: Mapping[str, str] | None = None, **_: Any
    ) -> bytes:
        words = path.split("/")
        plural = words[6]
        if verb == "GET":
            return self._found(plural, words[7]) if len(words) > 7 else self._list(plural, params or {})
        name = words[7] if len(words) > 7 else body["metadata"]["name"]
        if (params or {}).get("dryRun"):
            kept = copy.deepcopy(self.objects), list(self.history), self.version, self.changed
            self.changed = []
            try:
                self._apply(verb, plural, name, body, status=False)
            finally:
                self.objects, self.history, self.version, self.changed = kept
            return b"{}"
        number = len(self.writes)
        if self.kill_at == number:
            self.kill_at = None
            raise Killed
        self._apply(verb, plural, name, body, words[8:] == ["status"])
        self.writes.append((verb, name))
        return self._found(plural, name) if verb != "DELETE" else b"{}"

    def _found(self, plural: str, name: str) -> bytes:
        if (plural, name) not in self.objects:
            raise NotFound("not found", Details(name=name, kind=plural))
        return json.dumps(self.objects[plural, name]).encode()

    def _list(self, plural: str, params: Mapping[str, str]) -> bytes:
        name = params.get("fieldSelector", "").partition("=")[2]
        found = [each for (kind, its), each in self.objects.items() if kind == plural and name in {"", its}]
        return json.dumps({"metadata": {"resourceVersion": str(self.version)}, "items": found}).encode()

    def _apply(self, verb: str, plural: str, name: str, body: Any, status: bool) -> None:
        if verb == "POST":
            if (plural, name) in self.objects:
                raise AlreadyExists("there is one")
            if self.rejects(body["spec"]):
                raise Rejected(422, "Invalid", "the policy does not allow it", Details())
            owners = body["metadata"]["ownerReferences"]
            assert [each["uid"] for each in owners] == [self.sweep()["metadata"]["uid"]]
            self.put(plural, copy.deepcopy(body))
            return
        self._found(plural, name)
        if verb == "DELETE":
            self.delete(plural, name)
            return
        if body["metadata"]["resourceVersion"] != self.objects[plural, name]["metadata"]["resourceVersion"]:
            raise Conflict("changed")

        def change(document: dict[str, Any]) -> None:
            if status:
                document["status"] = body["status"]
            else:
                document["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
                document["spec"] |= body["spec"]

        self.edit(plural, name, change)

    # The operator's part.

    def operator(self) -> SweepController:
        """A process that has just read everything."""
        jobs, sweeps = Jobs(), Sweeps()
        for (plural, _), document in self.objects.items():
            (jobs if plural == "trainingjobs" else sweeps).record(None, json.loads(json.dumps(document)))
        return self.controller(jobs, sweeps)

    def controller(self, jobs: Jobs, sweeps: Sweeps, api: Api | None = None) -> SweepController:
        """The controller of a process with these caches, which writes to this world, or to `api` before it."""
        server: Api = api or self  # type: ignore[assignment]
        trials = Trials(server, jobs, self.provenance)

        def record(_sweep: TrainingSweep, event: SweepEvent) -> None:
            self.events.append((event.type, str(event.reason), event.message))

        clock = lambda: self.now  # noqa: E731 -- of this world, whenever it is asked
        return SweepController(server, sweeps, trials, record=record, clock=clock, sampler=self.sampler)

    async def visit(self) -> None:
        """Visit the sweep once with a fresh operator, which may be killed on the way."""
        try:
            await self.operator().visit(KEY)
        except Killed:
            self.provenance = TrialProvenance(lambda: self.now)  # its key went with the process

    async def until_over(self, turns: int = 200) -> dict[str, Any]:
        """Visit and train in turns until the sweep is over; return its status."""
        for _ in range(turns):
            await self.visit()
            status = self.sweep().get("status", {})
            if status.get("completionTime"):
                return status
            self.train()
        raise AssertionError(f"the sweep does not end: {self.sweep().get('status')}")

    # The part of the trials.

    def trials(self) -> list[dict[str, Any]]:
        return [each for (plural, _), each in self.objects.items() if plural == "trainingjobs"]

    def train(self) -> None:
        """Advance every trial to its next rung; one that is to stop saves first."""
        for job in self.trials():
            self.edit("trainingjobs", job["metadata"]["name"], self._train)

    def _train(self, job: dict[str, Any]) -> None:
        percent = percent_of(job)
        self.advance(job, next((rung for rung in RUNGS if rung > percent), 100) - percent)

    def advance(self, job: dict[str, Any], percents: int) -> None:
        """Train a job for so many percents of its steps; one that is to stop saves instead."""
        status = job.setdefault("status", {"state": "Pending", "reason": "WaitingForPods"})
        if status["state"] in {"Succeeded", "Failed"}:
            return
        if job["spec"].get("suspend"):
            status |= {"state": "Suspended"}
            return
        before, lr, name = percent_of(job), job["spec"]["trainer"]["params"]["lr"], job["metadata"]["name"]
        fails = name in self.fails and before + percents >= self.fail_at
        now = min(100, before + percents) if not fails else self.fail_at
        passed = {f"score@{rung}%": self.score(lr, rung) for rung in RUNGS if before < rung <= now and rung < 100}
        metrics = {**status.get("metrics", {}), **passed, "score": self.score(lr, now)}
        state = "Failed" if fails else "Running" if now < 100 else "Succeeded"
        known = {name: value for name, value in metrics.items() if value is not None}
        status |= {"state": state, "progress": {"percent": float(now)}, "metrics": known}

    def decisions(self) -> dict[str, Any]:
        """What was decided: parameters, units and ends of all trials, and the best of them."""
        sweep = parse_sweep(self.sweep())
        found = {}
        for document in self.trials():
            trial = trial_of(parse_job(document))  # type: ignore[arg-type]
            record = trial.record
            found[document["metadata"]["name"]] = (record.parameters, record.units, outcomes_of(sweep.spec, trial))  # type: ignore[union-attr]
        best = self.sweep().get("status", {}).get("best")
        return {**found, "best": best}

    def record(self, name: str) -> dict[str, Any]:
        return json.loads(self.objects["trainingjobs", name]["metadata"]["annotations"][TRIAL])


def percent_of(job: dict[str, Any]) -> int:
    """Percent of its steps that a trial has trained."""
    return int(job.get("status", {}).get("progress", {}).get("percent", 0))


def noisy(lr: float, percent: int) -> float:
    """Quality and noise, both fixed by the parameter: some trials are stopped, and two of those promoted."""
    quality = math.sin(25.9796 * (lr + 1)) * 43758.5453 % 1.0
    return round(quality * (0.5 + percent / 200) + math.sin(156.466 * lr + percent) * 0.2, 6)
