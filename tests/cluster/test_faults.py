"""Real faults in the middle of training: every job succeeds, says what happened, and has learned the very same weights.

Each test trains the same workload as `undisturbed` does, in two pods that share a claim, and compares the digest of the
model that comes out.
"""

import asyncio
import functools

import pytest
from tests.support.cluster import testbed
from tests.support.cluster.faults import drained, evict, exhaust_memory, kill_agent, kill_worker
from tests.support.cluster.jobs import Jobs
from tests.support.cluster.operators import until
from tests.support.cluster.training import Training

OUTAGE_SECONDS = 60.0
PARTITION_SECONDS = 30.0


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
    why = testbed.skip()
    if why:
        pytest.skip(why)
    return {node.name: node for node in testbed.workers()}


# Started again in its place, as the container of a Deployment is, the operator waits for no lease.
@pytest.mark.parametrize("operator", [{"pod": "operator-0"}], indirect=True, ids=["in its place"])
async def test_killed_workers_operators_and_deleted_pods(training, operator, undisturbed):
    jobs = training.jobs

    async def kill_unseen(pod: str) -> None:
        await operator.kill()
        await kill_worker(jobs, pod, 1)
        operator.start()

    faults = {
        "Killed": kill_unseen,
        "Preempted": jobs.delete_pod,
        "PodLost": lambda pod: jobs.delete_pod(pod, grace_seconds=0),
        "Evicted": lambda pod: evict(jobs, pod),
        "OOMKilled": lambda pod: exhaust_memory(jobs, pod),
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


@pytest.mark.usefixtures("nodes")
async def test_ranks_that_do_not_reach_each_other_for_half_a_minute_go_on(training, undisturbed):
    await training.gained()
    pods = await training.jobs.pods(training.name)
    one, other = (pod["status"]["podIP"] for pod in pods.values())
    before = training.newest_on_disk()
    with testbed.apart(one, other):
        await asyncio.sleep(PARTITION_SECONDS)
        assert training.newest_on_disk() <= before + 20, "no rank trains alone"
    assert await training.weights() == undisturbed
    status = await training.jobs.status(training.name)
    assert (status["round"], status.get("restarts", {}).get("total", 0)) == (1, 0)


@pytest.mark.alone  # other tests have pods on the node, too
async def test_a_node_that_is_drained_and_one_that_is_cut_off(training, nodes, undisturbed):
    await training.gained()
    _, drained_node = await training.pod(1)
    there = await training.on(drained_node)
    async with drained(training.jobs, training.name, drained_node):
        cause = await training.cause(1, "Evicted")
        assert cause["node"] == drained_node
        assert (cause["rank"], cause["pod"]) in there
        await training.gained()

    # The drain left one node, so all of the gang is there: cut off together it would train on, to the end if it is let.
    _, node = await training.pod(0)
    whole = await training.on(node)
    assert {rank for rank, _ in whole} == {0, 1}
    with nodes[node].repaired_afterwards():
        nodes[node].disconnect()
        nodes[node].pause()  # so that the end stays far, however long it takes to miss the node
        cause = await training.cause(2, "NodeLost")
        assert cause["node"] == node
        assert (cause["rank"], cause["pod"]) in whole
        before = training.rounds_on_disk()
        nodes[node].unpause()
        # It goes on where it was, beside the new round, wants to write its next checkpoint, and has to give up.
        left_behind = functools.partial(training.said_on, nodes[node])
        await until(lambda: "round 2 ended: code 76" in left_behind(), why=left_behind)
        after = training.rounds_on_disk()
        assert {after[step] for step in after.keys() - before.keys()} <= {3}
    assert await training.weights() == undisturbed


@pytest.mark.alone  # a node that is not Ready loses the pods of other tests, too
async def test_a_killed_agent_is_named_and_a_stopped_kubelet_takes_nothing(training, nodes, undisturbed):
    await training.gained()
    pod, name = await training.pod(1)
    await kill_agent(training.jobs, pod, nodes[name])
    cause = await training.cause(1, "PodFailed")
    assert (cause["rank"], cause["pod"], cause["node"], cause["exitCode"]) == (1, pod, name, 137)

    await training.gained()
    _, name = await training.pod(1)
    node = nodes[name]
    with node.repaired_afterwards():
        node.stop_kubelet()
        await until(lambda: asyncio.to_thread(lambda: not node.ready()), why=lambda: f"{name} is still ready")
        assert await training.weights() == undisturbed
    assert (await training.jobs.status(training.name))["round"] == 2


@pytest.mark.alone(last=True)  # afterwards its controllers, which crashed, wait before they start again
async def test_an_api_server_that_is_away_for_a_minute(training, nodes, undisturbed, operator):
    await training.gained()
    before = training.newest_on_disk()
    control_plane = testbed.control_plane()
    with control_plane.repaired_afterwards():
        control_plane.stop_api_server()
        await asyncio.sleep(OUTAGE_SECONDS)
        assert training.newest_on_disk() > before
    assert await training.weights() == undisturbed
    status = await training.jobs.status(training.name)
    assert (status["round"], status.get("restarts", {}).get("total", 0)) == (1, 0)
    assert operator.process.poll() is None
