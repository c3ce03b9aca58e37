"""Attacks on the ports of a job's pods, on a cluster whose network enforces NetworkPolicies (docs/testbed.md)."""

import asyncio
import json

import pytest
from tests.support.cluster import faults, testbed
from tests.support.cluster.jobs import Jobs
from tests.support.cluster.namespaces import fresh_namespace
from tests.support.cluster.operators import AGENT_IMAGE, until

from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.pod import container_security

FOREVER = """
import os, torch, torch.distributed as dist
from torchyard_agent import report
dist.init_process_group("gloo")
total = torch.zeros(1)
for step in range(1, 10**9):
    dist.all_reduce(total)
    if os.path.exists("/tmp/end"):
        break
    report(step=step)
    __import__("time").sleep(0.1)
"""
CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 4) as made:
        print("connected")
except OSError as error:
    print(type(error).__name__)
"""


class Attacker:
    """A pod of another tenant."""

    def __init__(self, jobs, **labels):
        self.jobs, self.labels = jobs, labels

    async def start(self):
        container = {
            "name": names.TRAINER,
            "image": AGENT_IMAGE,
            "command": ["python3", "-c", "import time; time.sleep(600)"],
            "securityContext": container_security(),
        }
        body = {
            "metadata": {"name": "attacker", "labels": self.labels},
            "spec": {
                "containers": [container],
                "terminationGracePeriodSeconds": 0,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            },
        }
        await self.jobs.api.request("POST", f"{self.jobs.core}/pods", body=body)
        return self

    async def ready(self):
        async def running():
            pod = json.loads(await self.jobs.api.request("GET", f"{self.jobs.core}/pods/attacker"))
            return pod["status"].get("phase") == "Running"

        await until(running, why=lambda: "the attacker does not run")

    async def connects(self, address, port):
        return await connects(self.jobs, "attacker", address, port)


async def connects(jobs, pod, address, port):
    said = await faults.execute(jobs.namespace, pod, "python3", "-c", CONNECT, address, str(port))
    return "connected" in said


pytestmark = pytest.mark.usefixtures("enforced")


@pytest.fixture
def enforced(kubeconfig):
    """Any cluster may have a network without policies; the test bed enforces them."""
    if why := testbed.skip():
        pytest.skip(f"whether this cluster enforces NetworkPolicies is not known: {why}")


@pytest.mark.parametrize("operator", [{"flags": ("--network-peers=[]",)}], indirect=True)
async def test_only_its_own_pods_reach_the_store_of_a_job_that_trains(api, namespace, operator):
    jobs = Jobs(api, namespace)
    await jobs.submit("mine", script=FOREVER, nodes=2, gracePeriod="2s")
    async with fresh_namespace(api) as other:
        status = await jobs.trains("mine")
        uid = json.loads(await api.request("GET", f"{jobs.path}/mine"))["metadata"]["uid"]
        # A label of the job is worth nothing in another namespace; in its own, only the operator may give it.
        neighbour, stranger = Attacker(jobs), Attacker(Jobs(api, other), **{names.JOB_UID: uid})
        for each in (neighbour, stranger):
            await (await each.start()).ready()
        store = status["rendezvous"]["masterAddress"], status["rendezvous"]["masterPort"]
        pods = await jobs.pods("mine")
        members = [name for name, pod in pods.items() if pod["status"]["podIP"] != store[0]]
        assert len(members) == 1
        tries = (neighbour.connects(*store), stranger.connects(*store), connects(jobs, members[0], *store))
        assert await asyncio.gather(*tries) == [False, False, True]
        # It is the policy that keeps them out: without it they get in.
        policy = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/{names.gang_policy(uid)}"
        await api.request("DELETE", policy, body={})

        async def open_to_both():
            return await neighbour.connects(*store) and await stranger.connects(*store)

        await until(open_to_both, why=lambda: "the store cannot be reached without a policy either")
        await jobs.trains("mine", beyond=status["progress"]["step"])
