"""`torchyard doctor` believes a Lease and rights, which not everybody can give to a pod, and no label."""

import asyncio

import pytest
from aiohttp import web
from tests.support.cli.cluster import cluster

LEADER = {
    "metadata": {"name": "torchyard-0", "namespace": "system"},
    "spec": {
        "serviceAccountName": "torchyard",
        "containers": [{"image": "evil/image:1", "args": ["--lease-name=ours", "--intake-url=https://x:1"]}],
    },
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


class Cluster:
    """A pod with the label of a leader, a Lease and rights."""

    def __init__(self, holder, allowed):
        self.holder, self.allowed, self.started = holder, allowed, []

    async def answer(self, request):
        path = request.path
        if path.endswith("/leases/ours") and self.holder:
            return web.json_response({"spec": {"holderIdentity": self.holder}})
        if "/leases/" in path:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        if request.method == "POST" and path.endswith("/pods"):
            self.started.append((await request.json())["spec"]["containers"][0]["image"])
            return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403)
        if path.endswith("/subjectaccessreviews"):
            return web.json_response({"status": {"allowed": self.allowed}})
        if path.endswith("/pods"):
            return web.json_response({"items": [LEADER]})
        return web.json_response({"items": [], "resources": [], "status": {"allowed": True}, "spec": {"versions": []}})


@pytest.mark.parametrize(
    ("holder", "allowed", "started", "said"),
    [
        ("torchyard-0", True, ["evil/image:1"], "operator system/torchyard-0 leads"),
        ("another-pod", True, [], "pod system/torchyard-0 has the label of a leader and does not hold the Lease"),
        ("", True, [], "pod system/torchyard-0 has the label of a leader and does not hold the Lease"),
        ("torchyard-0", False, [], "the image of an operator without its rights is not run"),
    ],
    ids=["a leader", "another holds it", "no lease", "a lease of one's own"],
)
async def test_the_image_of_a_leader_alone_is_run(torchyard, holder, allowed, started, said):
    there = Cluster(holder, allowed)
    async with cluster(torchyard, there.answer):
        done = await asyncio.to_thread(torchyard, "doctor", "-n", "team")
    assert there.started == started
    assert said in done.stdout
