"""`launcher.kind: none` on a real cluster: torchrun finds its peers by the names of a headless service."""

import json

from tests.support.cluster.jobs import Jobs, python

SUM = """
import torch.distributed as dist, torch
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print(f"sum {total.item()} of {dist.get_world_size()}\\n", end="", flush=True)
dist.destroy_process_group()  # with a group still open gloo's threads abort some interpreters at their end
"""
FAILS = python("import os, sys, time; sys.exit('no luck') if os.environ['PET_NODE_RANK'] == '1' else time.sleep(600)")


async def test_two_nodes_find_each_other_by_name_and_add_up(api, namespace, operator):
    jobs = Jobs(api, namespace)
    await jobs.submit("sum", script=SUM, nodes=2, procsPerNode=2, launcher={"kind": "none"})
    status = await jobs.ends("sum")
    assert (status["state"], status["round"]) == ("Succeeded", 1), status["message"]
    ended = {name[-1]: name for name in sorted(await jobs.pods("sum"))}  # of each index the one that came last
    assert ended.keys() == {"0", "1"}, "ended pods stay for their logs"
    path, params = f"{jobs.core}/pods/{ended['0']}/log", {"container": "trainer"}
    log = await api.request("GET", path, params=params, accept="*/*")
    assert b"sum 10.0 of 4" in log
    service = json.loads(await api.request("GET", f"{jobs.core}/services/ty-sum"))
    assert service["metadata"]["ownerReferences"][0]["name"] == "sum"


async def test_a_member_that_fails_takes_the_gang_along_and_is_named(api, namespace, operator):
    jobs = Jobs(api, namespace)
    restart = {"maxRestarts": 1, "backoff": {"initial": "0s", "max": "1s"}}
    await jobs.submit("fails", command=FAILS, nodes=2, launcher={"kind": "none"}, restart=restart, gracePeriod="1s")
    status = await jobs.ends("fails")
    assert status["state"] == "Failed"
    first, second = status["attempts"]
    assert (first["cause"]["pod"], second["cause"]["pod"]) == ("fails-0-1", "fails-1-1")
    assert (first["cause"]["exitCode"], first["cause"]["class"], first["cause"]["rank"]) == (1, "WorkerFailed", 1)
    assert "no luck" in first["cause"]["lines"], "the end of its log outlives the pod"
