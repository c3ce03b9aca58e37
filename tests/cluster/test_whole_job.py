"""A TrainingJob through a real API server, scheduler, kubelets and containers on two nodes, from `apply` to the end."""

import json
from pathlib import Path

import yaml
from tests.support.cluster.operators import until

EXAMPLES = Path(__file__).parents[2] / "examples"
ENDED = {"Succeeded", "Failed"}


async def test_a_built_in_workload_trains_on_two_nodes_and_says_how_it_goes(api, namespace, operator):
    path = f"/apis/torchyard.dev/v1alpha1/namespaces/{namespace}/trainingjobs"
    job = yaml.safe_load((EXAMPLES / "cvrp.yaml").read_text())
    job["spec"]["nodes"] = 2
    job["spec"]["trainer"]["params"] |= {"steps": 150}
    job["spec"]["metrics"] = {"interval": "1s"}
    await api.request("POST", path, body=job)
    seen: list[dict] = []

    async def over() -> bool:
        status = json.loads(await api.request("GET", f"{path}/{job['metadata']['name']}")).get("status", {})
        if not seen or seen[-1] != status:
            seen.append(status)
        return status.get("state") in ENDED

    await until(over, why=lambda: json.dumps(seen[-1], indent=1))
    last = seen[-1]
    assert last["state"] == "Succeeded", last["message"]
    assert last["progress"]["step"] == 150
    states = list(dict.fromkeys(status["state"] for status in seen if "state" in status))
    assert states[-2:] == ["Running", "Succeeded"], states
    running = [status for status in seen if status.get("state") == "Running"]
    assert any(status.get("metrics", {}).get("loss") for status in running)
