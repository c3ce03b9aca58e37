"""A cluster with one sweep: an API server's part that its controller writes to, and jobs that train at any pace."""

import copy
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from torchyard.api.validation.parse import parse_job
from torchyard.api.values import rfc3339
from torchyard.app.sweep_controller import SweepController
from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.client.errors import AlreadyExists, Conflict, Details, NotFound, Rejected
from torchyard.kubernetes.sweeps import Sweeps, Trials
from torchyard.kubernetes.trial_provenance import TrialProvenance
from torchyard.sweeps.events import SweepEvent
from torchyard.sweeps.outcomes import outcomes_of, rungs
from torchyard.sweeps.parse import parse_sweep
from torchyard.sweeps.resource import TRIAL, TrainingSweep
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


class Killed(BaseException):
    """The operator is gone, whatever it was doing."""


class World:
    """The objects as the API server keeps them. A kill comes before a write, which is after the one before it.

    Args:
        spec: of the sweep, over that of `GRID`.
        score: value of a trial by its learning rate and percent; None: it reports none.
        rejects: whether the API server rejects a job that has this spec.
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
        self.fails: set[str] = set()
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

    # The API server's part.

    async def request(
        self, verb: str, path: str, *, body: Any = None, params: Mapping[str, str] | None = None, **_: Any
    ) -> bytes:
        words = path.split("/")
        plural, name = words[6], words[7] if len(words) > 7 else body["metadata"]["name"]
        if verb == "GET":
            return self._found(plural, name)
        if (params or {}).get("dryRun"):
            objects = copy.deepcopy(self.objects)
            try:
                self._apply(verb, plural, name, body, status=False)
            finally:
                self.objects = objects
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
            del self.objects[plural, name]
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
        jobs, sweeps = Jobs(changed=lambda _key: None), Sweeps(changed=lambda _key: None)
        for (plural, _), document in self.objects.items():
            (jobs if plural == "trainingjobs" else sweeps).record(None, json.loads(json.dumps(document)))
        trials = Trials(self, jobs, self.provenance)  # type: ignore[arg-type]

        def record(_sweep: TrainingSweep, event: SweepEvent) -> None:
            self.events.append((event.type, str(event.reason), event.message))

        clock = lambda: self.now  # noqa: E731 -- of this world, whenever it is asked
        return SweepController(self, sweeps, trials, record=record, clock=clock, sampler=self.sampler)  # type: ignore[arg-type]

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
        status = job.setdefault("status", {"state": "Pending", "reason": "WaitingForPods"})
        if status["state"] in {"Succeeded", "Failed"}:
            return
        if job["spec"].get("suspend"):
            status |= {"state": "Suspended"}
            return
        percent = int(status.get("progress", {}).get("percent", 0))
        stages = [*rungs(EarlyStopping(name="asha")), 100]
        now = next(stage for stage in stages if stage > percent)
        value = self.score(job["spec"]["trainer"]["params"]["lr"], now)
        metrics = dict(status.get("metrics", {}))
        metrics.pop("score", None)
        if value is not None:
            metrics |= {"score": value} | ({f"score@{now}%": value} if now < 100 else {})
        state = "Running" if now < 100 else "Failed" if job["metadata"]["name"] in self.fails else "Succeeded"
        status |= {"state": state, "progress": {"percent": float(now)}, "metrics": metrics}

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


def noisy(lr: float, percent: int) -> float:
    """Quality and noise, both fixed by the parameter: some trials are stopped, and two of those promoted."""
    quality = math.sin(25.9796 * (lr + 1)) * 43758.5453 % 1.0
    return round(quality * (0.5 + percent / 200) + math.sin(156.466 * lr + percent) * 0.2, 6)
