"""A sweep through a real API server: its operator is killed again and again, and it finds what it would have found."""

import json

import pytest
from tests.support.cluster.operators import until

from torchyard.kubernetes.client.api import MERGE_PATCH
from torchyard.sweeps.codec import read_sweep
from torchyard.sweeps.decide import Create, Finish, decide
from torchyard.sweeps.outcomes import Trial
from torchyard.sweeps.resource import TrialRecord
from torchyard.sweeps.sampling import Past, suggest

pytest.importorskip("optuna", reason="optuna is not installed: pip install torchyard[sweep]")

SCORES = ("0.25", "0.5", "0.75", "1.0")
SWEEP = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingSweep",
    "metadata": {"name": "tune"},
    "spec": {
        "objective": {"metric": "score", "goal": "maximize"},
        "algorithm": {"name": "tpe", "seed": 3},
        # Programs without torch, which say their value.
        "parameters": [{"path": "script", "choice": [f"print('score={score}', flush=True)" for score in SCORES]}],
        "maxTrials": 13,
        "parallelTrials": 3,
        "jobTemplate": {
            "spec": {
                "script": "print('score=0', flush=True)",
                "metrics": {"patterns": ["score=(?P<score>[0-9.]+)"], "interval": "1s"},
                "launcher": {"warmStart": False},
                "resources": {"memory": "1Gi"},
            }
        },
    },
}


def undisturbed():
    """Parameters by number, as they follow from the values alone: trials 10 to 12 depend on what others scored."""
    spec, trials = read_sweep(SWEEP).spec, []
    while not isinstance((actions := decide(spec, trials))[0], Finish):
        for action in actions:
            assert isinstance(action, Create)
            past = [
                Past(number=each.record.number, parameters=each.record.parameters, basis=each.record.units[0].basis)
                for each in trials
            ]
            parameters = suggest(spec, action.number, action.unit.basis, action.history, past)
            value = float(parameters["script"].partition("=")[2].partition("'")[0])
            record = TrialRecord(number=action.number, parameters=parameters, units=[action.unit])
            trials.append(Trial(record=record, state="Succeeded", metrics={"score": value}))
    return {each.record.number: each.record.parameters for each in trials}


async def test_a_sweep_whose_operator_is_killed_finds_what_it_would_have_found(api, namespace, operator):
    group = f"/apis/torchyard.dev/v1alpha1/namespaces/{namespace}"
    await api.request("POST", f"{group}/trainingsweeps", body=SWEEP)
    status: dict = {}

    async def ended(count: int) -> bool:
        nonlocal status
        status = json.loads(await api.request("GET", f"{group}/trainingsweeps/tune")).get("status", {})
        counts = status.get("trials", {})
        return sum(counts.get(kind, 0) for kind in ("complete", "stopped", "failed")) >= count

    for count in (1, 4, 8):
        await until(lambda count=count: ended(count), 240, lambda: json.dumps(status, indent=1))
        await operator.kill()
        operator.start()
    await until(lambda: ended(13), 240, lambda: json.dumps(status, indent=1))

    async def over() -> bool:
        return await ended(13) and status["state"] == "Succeeded"

    await until(over, 60, lambda: json.dumps(status, indent=1))
    trials = json.loads(await api.request("GET", f"{group}/trainingjobs"))["items"]
    records = [json.loads(each["metadata"]["annotations"]["torchyard.dev/trial"]) for each in trials]
    assert {each["number"]: each["parameters"] for each in records} == undisturbed()
    assert status["columns"]["trials"] == "13/13"
    assert status["best"]["value"] == max(float(each["status"]["metrics"]["score"]) for each in trials)

    await api.request(
        "PATCH", f"{group}/trainingsweeps/tune", body={"spec": {"ttlAfterFinished": "1s"}}, content_type=MERGE_PATCH
    )

    async def gone() -> bool:
        return not any([json.loads(await api.request("GET", f"{group}/{kind}"))["items"] for kind in KINDS])

    await until(gone, 120)  # the trials go with the sweep


KINDS = ("trainingsweeps", "trainingjobs")
