"""`vla` and `vlm` in two pods each, of which one is lost: the job goes on, and its success rate shows in the table."""

import asyncio
import json

from tests.support.cluster.jobs import Jobs
from tests.support.cluster.training import SPEC, Training

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
# The built-in workload with a pause after each step: however fast the machine is, a pod is lost in the middle.
PATIENT = """
import time

from torchyard_trainers.vla.params import resolve_params
from torchyard_trainers.vla.task import VisionLanguageAction


class Patient(VisionLanguageAction):
    def after_step(self, session, step, means):
        time.sleep(0.1)
        return super().after_step(session, step, means)
"""
CLONING = {"steps": 100, "batch": 16, "evalEpisodes": 16, "evalSamples": 16, "evalEvery": 100}
# Twelve rollouts of four optimizer steps; checkpoints are saved between rollouts.
ROLLOUTS = {
    "task": "reach",
    "environments": 16,
    "horizon": 8,
    "epochs": 1,
    "minibatches": 4,
    "environmentSteps": 12 * 16 * 8,
    "evalEpisodes": 16,
    "evalEvery": 24,
}


async def shown(jobs: Jobs) -> dict[str, str]:
    """What `kubectl get tj -o wide` shows as the result of each job."""
    table = json.loads(await jobs.api.request("GET", jobs.path, accept=TABLE))
    names = [each["name"] for each in table["columnDefinitions"]]
    rows = [dict(zip(names, row["cells"], strict=True)) for row in table["rows"]]
    return {row["Name"]: row["Result"] for row in rows}


async def test_a_pod_of_each_is_lost_and_the_success_rate_shows_in_the_table(api, namespace, operator):
    jobs = Jobs(api, namespace)
    patient = {"name": "patient:Patient", "params": CLONING}
    cloning = await Training(jobs, 100, trainer=patient, code={"patient.py": PATIENT}).start()
    playing = Training(jobs, 48, trainer={"name": "vlm", "params": ROLLOUTS})
    playing.name = "playing"
    await jobs.submit(playing.name, trainer=playing.trainer, **SPEC)

    async def goes_on_after_a_loss(training: Training, index: int) -> None:
        await training.gained()
        pod, _ = await training.pod(index)
        await jobs.delete_pod(pod, grace_seconds=0)
        await training.cause(1, "PodLost")
        await training.weights()  # succeeded, with all its steps

    await asyncio.gather(goes_on_after_a_loss(cloning, 1), goes_on_after_a_loss(playing, 0))
    for name, result in (await shown(jobs)).items():
        metric, value = result.split()
        assert (metric, 0 <= float(value) <= 1) == ("successRate", True), (name, result)
