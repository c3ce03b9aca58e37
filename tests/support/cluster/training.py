"""A built-in workload that trains in two pods with a shared claim, for faults to happen to."""

from pathlib import Path
from typing import Any

from tests.support.cluster import testbed
from tests.support.cluster.jobs import Jobs

STEPS = 300
PAUSES = Path(__file__).parents[1].joinpath("worker_modules/patient.py").read_text()
SMALL = {"customers": 5, "batch": 8, "samples": 2, "embedding": 16, "heads": 2, "layers": 1, "evalInstances": 16}
CLAIM = {"accessModes": ["ReadWriteMany"], "storageClassName": "shared", "resources": {"requests": {"storage": "1Gi"}}}
SPEC = {
    "nodes": 2,
    "resources": {"memory": "2Gi"},
    "checkpoint": {"volume": {"claim": "runs"}, "interval": {"steps": 10}},
    "metrics": {"interval": "1s"},
    "gracePeriod": "20s",
}


async def mounted(jobs: Jobs, code: dict[str, str]) -> dict[str, Any]:
    """Fields of a job that imports these files, in a config map that is made here, as docs/workloads.md says."""
    await jobs.make("configmaps", "code", data=code)
    volume = {"name": "code", "configMap": "code", "mountPath": "/work/code"}
    return {"volumes": [volume], "workingDir": "/work/code"}


class Training:
    """One job, and how it fares.

    Args:
        jobs: of the namespace it is in.
        steps: it makes in all.
        trainer: what trains; default: a small CVRP.
        code: files of Python that it imports, by name.
        spec: further fields.
    """

    def __init__(
        self,
        jobs: Jobs,
        steps: int = STEPS,
        *,
        trainer: dict | None = None,
        code: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        self.spec = {**SPEC, **spec}
        self.jobs, self.name, self.steps = jobs, "job", steps
        self.code = {"patient.py": PAUSES} if trainer is None else code
        self.trainer = trainer or {"name": "patient:Patient", "params": {**SMALL, "steps": steps}}

    async def start(self) -> "Training":
        await self.jobs.make("persistentvolumeclaims", "runs", spec=CLAIM)
        spec = self.spec
        if self.code:
            spec = {**spec, **await mounted(self.jobs, self.code)}
        await self.jobs.submit(self.name, trainer=self.trainer, **spec)
        return self

    async def gained(self) -> dict:
        """The status once the newest round runs and has made a checkpoint of its own: its end is then free."""

        def advanced(status: dict) -> bool:
            assert status.get("state") not in {"Succeeded", "Failed"}, status["message"]
            saved, rounds = status.get("checkpoint", {}).get("step", 0), status.get("attempts", [{}])
            return status["state"] == "Running" and saved > rounds[-1].get("startStep", 0)

        return await self.jobs.until(self.name, advanced)

    async def cause(self, number: int, reason: str) -> dict:
        """Why this round ended, once the next one makes steps; it must be this reason, and free of charge."""

        def recovered(status: dict) -> bool:
            assert status.get("state") != "Failed", status["message"]
            return status.get("round", 0) > number and status["state"] in {"Running", "Succeeded"}

        status = await self.jobs.until(self.name, recovered)
        attempt = next(each for each in status["attempts"] if each["round"] == number)
        assert (attempt["reason"], attempt.get("counted", False)) == (reason, False), attempt
        return attempt["cause"]

    async def pod(self, index: int) -> tuple[str, str]:
        """Name and node of the pod of this index that stays."""
        return await self.jobs.member(self.name, index)

    async def weights(self) -> str:
        """Digest of the model it made."""
        status = await self.jobs.ends(self.name)
        assert status["state"] == "Succeeded", status["message"]
        assert status["progress"]["step"] == self.steps
        (found,) = (each["sha256"] for each in status["artifacts"] if each["name"] == "model.safetensors")
        return found

    async def on(self, node: str) -> set[tuple[int, str]]:
        """Rank and name of its pods on a node: one worker a pod, so that a pod's rank is its index."""
        pods = (await self.jobs.pods(self.name)).values()
        return {
            (int(each["metadata"]["labels"]["torchyard.dev/index"]), each["metadata"]["name"])
            for each in pods
            if each["spec"].get("nodeName") == node and "deletionTimestamp" not in each["metadata"]
        }

    def newest_on_disk(self) -> int:
        """The newest complete checkpoint."""
        return max(self.rounds_on_disk(), default=0)

    def rounds_on_disk(self) -> dict[int, int]:
        """Which round wrote each complete checkpoint, by step: in the claim's folder, with no API server between."""
        folder = f"/shared/*{self.jobs.namespace}*"
        said = testbed.control_plane().run(
            "sh", "-c", f"grep -rhoE --include=COMMIT '\"(step|round)\": [0-9]+' {folder} || :"
        )
        numbers = [int(line.split()[1]) for line in said.splitlines()]
        return dict(zip(numbers[::2], numbers[1::2], strict=True))

    def said_on(self, node: testbed.Node) -> str:
        """The ends of its pods' logs as they lie on a node that only the testbed reaches."""
        logs = f"/var/log/pods/{self.jobs.namespace}_*/trainer/*.log"
        return node.run("sh", "-c", f"tail -v -n 50 {logs} || :")
