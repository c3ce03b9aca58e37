"""A real node announces its end by a taint: the job saves, its pod moves to another node, and nothing is charged."""

import json

from tests.support.cluster.jobs import Jobs
from tests.support.cluster.operators import until
from tests.support.cluster.training import Training

from torchyard.kubernetes.client.api import MERGE_PATCH


async def test_a_pod_leaves_a_node_that_announces_its_end(api, namespace, make_operator):
    taint = f"test.torchyard.dev/{namespace}"
    operator = make_operator(flags=("--node-notices", f"known,{taint}"))
    operator.start()
    await operator.ready()
    await until(operator.leads, why=lambda: operator.log.read_text()[-3000:])
    training = await Training(Jobs(api, namespace)).start()
    before = await training.gained()
    pod, node = await training.pod(1)
    path = f"/api/v1/nodes/{node}"
    spec = json.loads(await api.request("GET", path))["spec"]
    taints = spec.get("taints") or []
    # It keeps no pod of another test away.
    mine = {"key": taint, "value": "soon", "effect": "PreferNoSchedule"}
    added = {"spec": {"taints": [*taints, mine]}}
    await api.request("PATCH", path, body=added, content_type=MERGE_PATCH)
    try:
        status = await training.jobs.until(
            "job", lambda now: now.get("round", 0) > before["round"] and now["state"] in {"Running", "Succeeded"}
        )
        assert f"node {node}: taint {taint}=soon" in (await training.jobs.announced("job", "NodeLeaving"))[0]
        assert (status["restarts"]["total"], status["attempts"][-2]["reason"]) == (0, "NodeLeaving")
        assert status["attempts"][-1]["startStep"] == status["attempts"][-2]["endStep"], "no step is repeated"
        moved, elsewhere = await training.pod(1)
        assert (moved != pod, elsewhere != node) == (True, True)
    finally:
        listed = json.loads(await api.request("GET", path))["spec"].get("taints") or []
        rest = {"spec": {"taints": [each for each in listed if each["key"] != taint]}}
        await api.request("PATCH", path, body=rest, content_type=MERGE_PATCH)
