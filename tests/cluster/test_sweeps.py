"""A sweep through a real API server: its operator is killed again and again, and it finds what it would have found."""

import asyncio
import json
import os
import sys

import pytest
from tests.support.cluster.jobs import python
from tests.support.cluster.operators import PATIENCE, until

import torchyard as ty
from torchyard.api.status import State
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
        "parameters": [{"path": "args[0]", "choice": list(SCORES)}],
        "maxTrials": 13,
        "parallelTrials": 3,
        "jobTemplate": {
            "spec": {
                "command": python("import sys; print(f'score={sys.argv[1]}', flush=True)"),
                "args": ["0"],
                "metrics": {"patterns": ["score=(?P<score>[0-9.]+)"], "interval": "1s"},
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
            value = float(parameters["args[0]"])
            record = TrialRecord(number=action.number, parameters=parameters, units=[action.unit])
            trials.append(Trial(record=record, state=State.SUCCEEDED, metrics={"score": value}))
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
        await until(lambda count=count: ended(count), why=lambda: json.dumps(status, indent=1))
        await operator.kill()
        operator.start()
    await until(lambda: ended(13), why=lambda: json.dumps(status, indent=1))

    async def over() -> bool:
        return await ended(13) and status["state"] == "Succeeded"

    await until(over, why=lambda: json.dumps(status, indent=1))
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

    await until(gone)  # the trials go with the sweep


KINDS = ("trainingsweeps", "trainingjobs")


# A program that knows nothing of TorchYard. A bad value waits behind its first rung until it is asked to save; nothing
# else ends it.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
for step in range(1, 11):
    print(f"step {step}/10 loss={float(sys.argv[1]) / step}", flush=True)
    if float(sys.argv[1]) > 1 and step == 3:
        signal.pause()
"""
PLAIN = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "algorithm": {"name": "grid"},
    "earlyStopping": {"name": "asha"},
    "parameters": [{"path": "args[0]", "choice": [1, 2]}],
    "jobTemplate": {
        "spec": {
            "command": ["python3", "-c", PROGRAM],
            "args": ["1"],
            "metrics": {"patterns": [r"step (?P<step>\d+)/(?P<total_steps>\d+) loss=(?P<loss>\S+)"]},
            "launcher": {"warmStart": False},
            "resources": {"memory": "1Gi"},
        }
    },
}


async def test_python_searches_submits_the_best_job_and_compares_it(namespace, operator, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    async with asyncio.timeout(PATIENCE):
        sweep = await ty.aio.sweep({"metadata": {"name": "plain"}, "spec": PLAIN}, namespace=namespace)
        good, bad = await sweep.trials()
        assert (good.outcome, good.value, good.best) == ("complete", 0.1, True)
        assert (bad.outcome, bad.value, bad.percent) == ("stopped", 2.0, 10), "the loss after step 1 of 10"
        again = await ty.aio.submit(await sweep.best(), name="again", namespace=namespace)
        assert (await again.wait()).metrics["loss"] == 0.1
        explained = str(await (await ty.aio.get_job("plain-1", namespace=namespace)).why())
        assert "trial 1 of sweep plain, which stopped it early" in explained

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "torchyard.cli.main", "diff", "again", "plain-1", "-n", namespace, "-o", "json"),
        env=os.environ,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    differences = {(each["section"], each["name"]): each for each in json.loads(out)["differences"]}
    assert differences["specification", "args"]["left"] == '["1"]'
    assert differences["metrics", "loss"]["left"] == 0.1
