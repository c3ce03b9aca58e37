"""GRPO in pods: one that is lost during a rollout costs that rollout only, and the reward is seen to rise."""

import json

from tests.support.cluster.jobs import ENDED, Jobs
from tests.support.cluster.operators import until
from tests.support.cluster.training import Training

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
# Rollouts take most of the time: each waits for its rewards longer than it takes until a status shows it.
JUDGE = """
import time


def judge(prompts, completions, rows):
    time.sleep(2)
    return [
        sum(map(str.__eq__, completion, row["answer"])) / max(len(completion), len(row["answer"]))
        for completion, row in zip(completions, rows)
    ]
"""
PARAMS = {
    "method": "grpo",
    "task": "reverse",
    "length": 4,
    "reward": "judge:judge",
    "rewardWorkers": 1,
    "steps": 120,
    "sftSteps": 40,
    "minibatches": 4,
    "batch": 128,
    "maxNewTokens": 8,
    "rolloutBatch": 128,
    "evalEvery": 1000,
}


async def reward(jobs: Jobs) -> float | None:
    """What `kubectl get tj` shows of the only job."""
    table = json.loads(await jobs.api.request("GET", jobs.path, accept=TABLE))
    (row,) = table["rows"]
    cells = dict(zip((each["name"] for each in table["columnDefinitions"]), row["cells"], strict=True))
    return float(cells["Reward"]) if cells["Reward"] else None


async def test_a_pod_lost_during_a_rollout_is_replaced_and_the_reward_rises_in_the_table(api, namespace, operator):
    jobs = Jobs(api, namespace)
    trainer = {"name": "lm", "params": PARAMS}
    training = await Training(jobs, PARAMS["steps"], trainer=trainer, code={"judge.py": JUDGE}).start()

    shown: list[float] = []

    def rolls_out(status: dict) -> bool:
        assert status["state"] not in ENDED, status.get("message")
        if text := status.get("columns", {}).get("reward"):
            shown.append(float(text))
        progress = status.get("progress", {})
        return progress.get("phase") == "rollout" and progress.get("step", 0) > PARAMS["sftSteps"]

    await jobs.until(training.name, rolls_out)
    pod, _ = await training.pod(1)
    await jobs.delete_pod(pod, grace_seconds=0)
    await training.cause(1, "PodLost")

    async def over() -> bool:
        status = await jobs.status(training.name)
        found = await reward(jobs)
        if found is not None:
            shown.append(found)
        return status["state"] in ENDED

    await until(over)
    await training.weights()  # succeeded, with all its steps
    assert shown[-1] > shown[0] + 0.1, shown
