"""Real faults in the middle of training: every job succeeds, says what happened, and has learned the very same weights.

Each test trains the same workload as `undisturbed` does, in two pods that share a claim, and compares the digest of the
model that comes out.
"""

import asyncio

import bed
import pytest
from faults import drained, evict, exhaust_memory, kill_worker
from jobs import Jobs
from operators import until
from training import Training

OUTAGE_SECONDS = 60.0


@pytest.fixture(scope="module")
def undisturbed(in_a_namespace) -> str:
    """Digest of the model when nothing happens."""

    async def train(api, namespace, make_operator) -> str:
        operator = make_operator()
        operator.start()
        await operator.ready()
        return await (await Training(Jobs(api, namespace)).start()).weights()

    return in_a_namespace(train)


@pytest.fixture
async def training(undisturbed, api, namespace, operator) -> Training:
    """A job in the middle of its training."""
    return await Training(Jobs(api, namespace)).start()


@pytest.fixture
def nodes():
    """The nodes, which can be broken here."""
    why = bed.skip()
    if why:
        pytest.skip(why)
    return {node.name: node for node in bed.workers()}


async def test_workers_and_pods_that_are_killed_deleted_and_evicted_one_after_another(training, undisturbed):
    jobs = training.jobs
    faults = {
        "Killed": lambda pod: kill_worker(jobs, pod, 1),
        "Preempted": jobs.delete_pod,
        "PodLost": lambda pod: jobs.delete_pod(pod, grace_seconds=0),
        "Evicted": lambda pod: evict(jobs, pod),
        "OOMKilled": lambda pod: exhaust_memory(jobs, pod, 1),
    }
    for number, (reason, fault) in enumerate(faults.items(), start=1):
        assert (await training.gained())["round"] == number
        pod, node = await training.pod(1)
        await fault(pod)
        cause = await training.cause(number, reason)
        assert (cause["rank"], cause["pod"], cause["node"]) == (1, pod, node)
    assert await training.weights() == undisturbed
    restarts = (await jobs.status(training.name))["restarts"]
    assert (restarts["total"], restarts.get("counted", 0)) == (len(faults), 0)


async def test_a_node_that_is_drained_and_one_that_is_cut_off(training, nodes, undisturbed):
    await training.gained()
    pod, node = await training.pod(1)
    async with drained(training.jobs, training.name, node):
        cause = await training.cause(1, "Evicted")
        assert (cause["pod"], cause["node"]) == (pod, node)
        _, elsewhere = await training.pod(1)
        assert elsewhere != node

    # The first pod leads the round and writes its checkpoints: cut off, it must not write into the next one.
    await training.gained()
    (pod, node), (neighbour, there) = await training.pod(0), await training.pod(1)
    # The drain may have left both on one node; which of the two is missed first is then a matter of moments.
    lost = {(0, pod), (1, neighbour)} if there == node else {(0, pod)}
    with nodes[node].repaired_afterwards():
        nodes[node].disconnect()
        cause = await training.cause(2, "NodeLost", 180)
        assert cause["node"] == node
        assert (cause["rank"], cause["pod"]) in lost
    assert await training.weights() == undisturbed


async def test_a_kubelet_that_stops_takes_nothing_from_the_training(training, nodes, undisturbed):
    await training.gained()
    _, name = await training.pod(1)
    node = nodes[name]
    with node.repaired_afterwards():
        node.stop_kubelet()
        await until(lambda: asyncio.to_thread(lambda: not node.ready()), 60, lambda: f"{name} is still ready")
        assert await training.weights() == undisturbed
    assert (await training.jobs.status(training.name))["round"] == 1


async def test_an_operator_that_is_killed_alone_and_together_with_a_worker(training, operator, undisturbed):
    await training.gained()
    await operator.kill()
    operator.start()
    await until(operator.leads, 60)
    assert (await training.gained())["round"] == 1

    pod, node = await training.pod(1)
    await operator.kill()
    await kill_worker(training.jobs, pod, 1)
    operator.start()
    cause = await training.cause(1, "Killed")
    assert (cause["rank"], cause["pod"], cause["node"]) == (1, pod, node)
    assert await training.weights() == undisturbed


async def test_an_api_server_that_is_away_for_a_minute(training, nodes, undisturbed, operator):
    await training.gained()
    before = training.newest_on_disk()
    control_plane = bed.control_plane()
    with control_plane.repaired_afterwards():
        control_plane.stop_api_server()
        await asyncio.sleep(OUTAGE_SECONDS)
        assert training.newest_on_disk() > before
    assert await training.weights() == undisturbed
    status = await training.jobs.status(training.name)
    assert (status["round"], status.get("restarts", {}).get("total", 0)) == (1, 0)
    assert operator.process.poll() is None
