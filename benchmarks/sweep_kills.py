"""A sweep on a cluster whose operator is killed again and again, and the same sweep undisturbed: are they equal?

    eval "$(make -s kind-env)"; make kind-images; python benchmarks/sweep_kills.py [TRIALS [KILLS]]

Trials train CVRP with ASHA on a claim that they share, so that a promoted trial goes on from its checkpoint. The
operator is a process of this machine. Compared are the parameters of all trials, the units of training with their
thresholds, how each trial ended, its values at rungs, and the best trial.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.cluster.jobs import Jobs
from tests.support.cluster.namespaces import fresh_namespace, install
from tests.support.cluster.operators import Operator, address_for_pods, make_certificates, until
from tests.support.cluster.patient_api import connected
from tests.support.cluster.training import CLAIM

from torchyard.api.resource import TrainingJob
from torchyard.api.validation.parse import parse_job
from torchyard.kubernetes.client.api import Api
from torchyard.sweeps.codec import read_sweep
from torchyard.sweeps.outcomes import outcomes_of
from torchyard.sweeps.trials import trial_of

STEPS = 200
LIMIT_SECONDS = 3000.0


def sweep(name: str, trials: int) -> dict[str, Any]:
    """Return the sweep."""
    params = {"preset": "tiny", "steps": STEPS, "evalEvery": STEPS // 10, "evalInstances": 100}
    return {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingSweep",
        "metadata": {"name": name},
        "spec": {
            "objective": {"metric": "cost", "goal": "minimize"},
            "algorithm": {"name": "tpe", "seed": 5},
            "earlyStopping": {"name": "asha"},
            "parameters": [
                {"path": "trainer.params.lr", "float": {"min": 0.0001, "max": 0.01, "log": True}},
                {"path": "trainer.params.seed", "int": {"min": 1, "max": 5}},
            ],
            "maxTrials": trials,
            "parallelTrials": 2,
            "jobTemplate": {
                "spec": {
                    "trainer": {"name": "cvrp", "params": params},
                    "checkpoint": {"volume": {"claim": "runs"}},
                    "resources": {"memory": "2Gi"},
                }
            },
        },
    }


async def main(trials: int, kills: int) -> None:
    """Run both, and compare them."""
    with tempfile.TemporaryDirectory() as folder:
        async with connected() as api, fresh_namespace(api) as namespace:
            await install(api)
            jobs = Jobs(api, namespace)
            await jobs.make("persistentvolumeclaims", "runs", spec=CLAIM)
            address = await address_for_pods(api)
            tls = make_certificates(Path(folder) / "tls", address)
            operator = Operator(Path(folder), namespace, tls=tls, address=address, pod="operator-0")
            operator.start()
            try:
                await operator.ready()
                found = [
                    await life(jobs, operator, name, trials, each) for name, each in (("wild", kills), ("calm", 0))
                ]
            finally:
                operator.stop()
    wild, calm = found
    for number in sorted(calm | wild):
        same = (
            "equal"
            if wild.get(number) == calm.get(number)
            else f"DIFFERENT\n  {wild.get(number)}\n  {calm.get(number)}"
        )
        print(f"{number}: {same}")
    print("equal" if wild == calm else "DIFFERENT")


async def life(jobs: Jobs, operator: Operator, name: str, trials: int, kills: int) -> dict[str, Any]:
    """Run a sweep to its end; return what was decided."""
    group = f"/apis/torchyard.dev/v1alpha1/namespaces/{jobs.namespace}"
    await jobs.api.request("POST", f"{group}/trainingsweeps", body=sweep(name, trials))
    begun = time.monotonic()
    marks = [round(trials * (kill + 0.5) / kills) for kill in range(kills)]
    status: dict[str, Any] = {}

    async def at(count: int) -> bool:
        nonlocal status
        status = json.loads(await jobs.api.request("GET", f"{group}/trainingsweeps/{name}")).get("status", {})
        assert status.get("state") != "Failed", status["message"]
        return status.get("trials", {}).get("created", 0) >= count

    async def over() -> bool:
        return await at(0) and status.get("state") == "Succeeded"

    for mark in marks:
        await until(lambda mark=mark: at(mark), LIMIT_SECONDS, lambda: json.dumps(status))
        await operator.kill()
        operator.start()
        print(f"{name}: operator killed with {status['trials']}", flush=True)
    await until(over, LIMIT_SECONDS, lambda: json.dumps(status))
    print(f"{name}: {time.monotonic() - begun:.0f} s, {status['trials']}, best {status['best']}", flush=True)
    return await decisions(jobs.api, group, name, trials) | {
        -1: (status["best"]["trial"].removeprefix(name), status["best"]["value"])
    }


async def decisions(api: Api, group: str, name: str, trials: int) -> dict[int, Any]:
    """Return what was decided of each trial, and how it ended."""
    spec = read_sweep(sweep(name, trials)).spec
    found = {}
    params = {"labelSelector": f"torchyard.dev/sweep={name}"}
    for document in json.loads(await api.request("GET", f"{group}/trainingjobs", params=params))["items"]:
        job = parse_job(document)
        assert isinstance(job, TrainingJob)
        trial = trial_of(job)
        found[trial.record.number] = (trial.record.parameters, trial.record.units, outcomes_of(spec, trial))
    return found


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, int(sys.argv[2]) if len(sys.argv) > 2 else 5))
