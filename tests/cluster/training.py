"""A built-in workload that trains in two pods with a shared claim, for faults to happen to."""

import bed
from jobs import Jobs

STEPS = 300
CLAIM = {"accessModes": ["ReadWriteMany"], "storageClassName": "shared", "resources": {"requests": {"storage": "1Gi"}}}
SPEC = {
    "nodes": 2,
    "resources": {"memory": "2Gi"},
    "checkpoint": {"volume": {"claim": "runs"}, "interval": {"steps": 10}},
    "metrics": {"interval": "1s"},
    "gracePeriod": "20s",
}


class Training:
    """One job, and how it fares.

    Args:
        jobs: of the namespace it is in.
        steps: it makes in all.
    """

    def __init__(self, jobs: Jobs, steps: int = STEPS) -> None:
        self.jobs, self.name, self.steps = jobs, "job", steps

    async def start(self) -> "Training":
        await self.jobs.make("persistentvolumeclaims", "runs", spec=CLAIM)
        trainer = {"name": "cvrp", "params": {"preset": "tiny", "steps": self.steps}}
        await self.jobs.submit(self.name, trainer=trainer, **SPEC)
        return self

    async def gained(self, seconds: float = 120.0) -> dict:
        """The status once the newest round runs and has made a checkpoint of its own: its end is then free."""

        def advanced(status: dict) -> bool:
            assert status.get("state") not in {"Succeeded", "Failed"}, status["message"]
            saved, rounds = status.get("checkpoint", {}).get("step", 0), status.get("attempts", [{}])
            return status["state"] == "Running" and saved > rounds[-1].get("startStep", 0)

        return await self.jobs.until(self.name, advanced, seconds)

    async def cause(self, number: int, reason: str, seconds: float = 120.0) -> dict:
        """Why this round ended, once the next one makes steps; it must be this reason, and free of charge."""

        def recovered(status: dict) -> bool:
            assert status.get("state") != "Failed", status["message"]
            return status.get("round", 0) > number and status["state"] in {"Running", "Succeeded"}

        status = await self.jobs.until(self.name, recovered, seconds)
        attempt = next(each for each in status["attempts"] if each["round"] == number)
        assert (attempt["reason"], attempt.get("counted", False)) == (reason, False), attempt
        return attempt["cause"]

    async def pod(self, index: int) -> tuple[str, str]:
        """Name and node of the pod of this index that stays."""
        pods = (await self.jobs.pods(self.name)).values()
        (found,) = (
            each
            for each in pods
            if each["metadata"]["labels"]["torchyard.dev/index"] == str(index)
            and "deletionTimestamp" not in each["metadata"]
            and each["status"]["phase"] == "Running"
        )
        return found["metadata"]["name"], found["spec"]["nodeName"]

    async def weights(self) -> str:
        """Digest of the model it made."""
        status = await self.jobs.ends(self.name, 300)
        assert status["state"] == "Succeeded", status["message"]
        assert status["progress"]["step"] == self.steps
        (found,) = (each["sha256"] for each in status["artifacts"] if each["name"] == "model.safetensors")
        return found

    def newest_on_disk(self) -> int:
        """The newest complete checkpoint in the claim's folder, which every node sees: no API server is needed."""
        found = bed.workers()[0].run("find", "/shared", "-path", f"*{self.jobs.namespace}*", "-name", "COMMIT")
        return max((int(line.split("step-")[1].split("/")[0]) for line in found.splitlines()), default=0)
