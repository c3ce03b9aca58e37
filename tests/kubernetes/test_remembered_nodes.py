"""The memory of nodes passes from leader to leader in the Lease, and ends with a repair or a new node."""

import asyncio
import json

import pytest
from tests.support.kubernetes.leases import LeaseServer, Wire
from tests.support.reconcile.world import World
from tests.support.virtual_time import virtual_time

from torchyard.api.names import REPAIRED
from torchyard.api.reasons import Reason
from torchyard.api.status import Attempt, Cause
from torchyard.api.values import Time, rfc3339
from torchyard.kubernetes.cache.remembered_nodes import ANNOTATION, LOOK_SECONDS, RememberedNodes, half_life
from torchyard.kubernetes.client.errors import refusal
from torchyard.kubernetes.election import Lease
from torchyard.reconcile.node_memory import avoided_nodes, remembered

NOW = 1_764_000_000.0
HOUR = 3600.0


class NodeServer:
    """Answers reads of nodes."""

    def __init__(self, **nodes: dict) -> None:
        self.nodes, self.reads = nodes, 0

    async def request(self, verb: str, path: str) -> bytes:
        assert verb == "GET"
        self.reads += 1
        name = path.rpartition("/")[2]
        if name not in self.nodes:
            raise refusal(404, b'{"details": {"kind": "nodes"}}', what=path)
        return json.dumps({"metadata": {"name": name} | self.nodes[name]}).encode()


def created(time, **annotations):
    return {"creationTimestamp": rfc3339(time), "annotations": annotations}


def failed_job(node="w3", time=NOW):
    job = World(1).job
    cause = Cause(node=node, class_=Reason.HARDWARE_SUSPECTED)
    attempts = [Attempt(round=1, end_time=Time.of(time), end_step=5, cause=cause)]
    return type(job)(metadata=job.metadata, spec=job.spec, status=type(job.status)(attempts=attempts))


def nodes_of(memory, now=NOW + 1):
    return remembered(memory.memory, now)


@virtual_time
async def test_the_next_leader_knows_the_nodes_before_it_leads():
    server, loop = LeaseServer(), asyncio.get_running_loop()

    def candidate(identity):
        memory = RememberedNodes(NodeServer(), 6 * HOUR, clock=lambda: NOW)
        notes = {ANNOTATION: memory}
        return memory, Lease(
            Wire(server), namespace="ty", name="torchyard", identity=identity, notes=notes, clock=loop.time
        )

    (first, one), (second, two) = candidate("one"), candidate("two")
    tasks = [asyncio.create_task(one.run())]
    await one.acquired()
    assert ANNOTATION not in server.lease["metadata"]["annotations"], "nothing to remember is not written"
    first.learn([failed_job()])
    await asyncio.sleep(3)
    tasks.append(asyncio.create_task(two.run()))
    await asyncio.sleep(2)
    tasks[0].cancel()
    await two.acquired()
    assert nodes_of(second) == ["w3"]
    second.read("edited by hand")
    assert nodes_of(second) == ["w3"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("node", "counts"),
    [
        (created(NOW - 9), True),
        (created(NOW + 5), False),
        (created(NOW - 9, **{REPAIRED: rfc3339(NOW - 5)}), True),
        (created(NOW - 9, **{REPAIRED: rfc3339(NOW + 5)}), False),
        (created(NOW - 9, **{REPAIRED: "yesterday"}), True),
        (None, False),
    ],
    ids=["older", "created again", "repaired before", "repaired", "unreadable", "gone"],
)
@virtual_time
async def test_a_node_that_was_repaired_or_created_again_is_trusted(node, counts):
    server = NodeServer(**({"w3": node} if node is not None else {}))
    memory = RememberedNodes(server, 6 * HOUR, clock=lambda: NOW + 10)
    task = asyncio.create_task(memory.run())
    job = failed_job()
    memory.learn([job])
    assert nodes_of(memory) == ["w3"], "it is avoided at once"
    await asyncio.sleep(1)
    assert nodes_of(memory) == (["w3"] if counts else [])
    own = avoided_nodes(memory.memory, job.status.attempts, NOW + 1)
    assert [each.node for each in own] == (["w3"] if counts else []), "for the job that failed there, too"
    await asyncio.sleep(10 * LOOK_SECONDS)
    assert server.reads <= 12
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_half_life_is_a_duration_or_off():
    assert (half_life("off"), half_life("6h")) == (0.0, 6 * HOUR)
    with pytest.raises(ValueError, match="or off"):
        half_life("6 days")
    with pytest.raises(ValueError, match="shorter than a minute"):
        half_life("5s")
