"""Nodes that failed jobs are avoided: at once by the job, by others as long as the failures are worth it."""

from hypothesis import given
from hypothesis import strategies as st
from tests.support.reconcile.scenarios import recover
from tests.support.reconcile.world import World

from torchyard.api.exit_codes import ExitCode
from torchyard.api.reasons import Reason
from torchyard.api.status import Attempt, Cause
from torchyard.api.values import Time
from torchyard.reconcile.node_memory import (
    MAX_AVOIDED,
    MAX_STRIKES,
    MAX_STRIKES_OF_NODE,
    NodeMemory,
    Strike,
    avoided_nodes,
    merged,
    remembered,
    strikes_of,
)

HOUR = 3600.0
NOW = 1_000_000.0
MEMORY = NodeMemory(half_life=6 * HOUR)
BLAMING = [reason for reason in Reason if reason.blames_node]


def attempt(reason, node="w1", time=NOW, steps=0):
    return Attempt(round=1, end_time=Time.of(time), end_step=steps, cause=Cause(node=node, class_=reason))


ATTEMPTS = st.lists(
    st.builds(
        attempt,
        st.sampled_from([*BLAMING, Reason.WORKER_FAILED]),
        st.sampled_from([f"n{index}" for index in range(24)]),
        st.integers(0, int(NOW)),
        st.integers(0, 3),
    ),
    max_size=10,
)


def struck(*jobs):
    """The memory after the attempts of several jobs."""
    memory = MEMORY
    for number, attempts in enumerate(jobs):
        memory = merged(memory, strikes_of(f"team/job-{number}", attempts), NOW)
    return memory


def names(avoided):
    return [each.node for each in avoided]


def test_a_job_avoids_at_once_a_node_whose_hardware_failed_it_and_others_do_for_a_half_life():
    failed = [attempt(Reason.HARDWARE_SUSPECTED, time=NOW)]
    memory = struck(failed)
    (own,) = avoided_nodes(memory, failed, NOW + 1)
    assert (own.node, own.reason, own.failures, own.time) == ("w1", "HardwareSuspected", 1, NOW)
    assert remembered(memory, NOW + 5 * HOUR) == ["w1"]
    assert remembered(memory, NOW + 7 * HOUR) == []
    assert names(avoided_nodes(memory, failed, NOW + 7 * HOUR)) == ["w1"], "the job itself remembers it longer"


def test_one_kill_blames_no_node_and_repeated_ones_do():
    killed = [attempt(Reason.KILLED, time=NOW - 60 * number, steps=5) for number in range(3)]
    assert avoided_nodes(struck(killed[:1]), killed[:1], NOW) == []
    assert names(avoided_nodes(struck(killed[:2]), killed[:2], NOW)) == ["w1"]
    assert remembered(struck(killed[:2]), NOW) == []
    assert remembered(struck(killed), NOW) == ["w1"]


def test_an_image_that_fails_on_every_node_is_held_against_none_by_other_jobs():
    failed = [attempt(Reason.HARDWARE_SUSPECTED, f"w{number}", NOW - 60 * number) for number in range(4)]
    memory = struck(failed)
    assert remembered(memory, NOW) == []
    assert names(avoided_nodes(memory, failed, NOW)) == ["w0", "w1", "w2", "w3"], "the job itself tries others"
    assert remembered(struck(failed[:1], failed[:1]), NOW) == ["w0"], "two jobs that fail on one node do"


def test_failures_before_a_repair_do_not_count():
    failed = [attempt(Reason.HARDWARE_SUSPECTED, time=NOW - 60)]
    repaired = NodeMemory(half_life=HOUR, strikes=struck(failed).strikes, cleared={"w1": NOW - 30})
    assert avoided_nodes(repaired, failed, NOW) == []
    again = [*failed, attempt(Reason.HARDWARE_SUSPECTED, time=NOW - 10)]
    assert names(avoided_nodes(repaired, again, NOW)) == ["w1"]


def test_without_a_half_life_a_job_learns_from_itself_alone():
    strikes = struck([attempt(Reason.HARDWARE_SUSPECTED)]).strikes
    off = NodeMemory(strikes=strikes)
    assert (remembered(off, NOW), avoided_nodes(off, [], NOW)) == ([], [])
    assert names(avoided_nodes(off, [attempt(Reason.CONTAINER_CANNOT_START, "w2", 1)], NOW)) == ["w2"]


def test_the_gang_of_another_job_is_created_elsewhere_and_says_so():
    world = World(2)
    world.node_memory = NodeMemory(
        half_life=HOUR,
        strikes=(
            Strike(node="node-7", time=int(world.now), job="team/other", reason=Reason.HARDWARE_SUSPECTED, weight=1.0),
        ),
    )
    world.settle()
    assert [each.avoid for each in world.created] == [("node-7",), ("node-7",)]
    assert names(world.status.avoided_nodes) == ["node-7"]
    world.start_pods()
    world.settle()
    world.end_workers(world.at(1), ExitCode.HARDWARE, exception="GPU 0: XID 79")
    world.settle()
    world.finish_deletions()
    recover(world, 3)
    assert world.created[-1].avoid == ("node-1", "node-7"), "its own failure first"
    assert names(world.status.avoided_nodes) == ["node-1", "node-7"]


@given(st.lists(ATTEMPTS, max_size=6), st.permutations(range(6)), st.floats(0, 100 * HOUR), ATTEMPTS)
def test_the_memory_is_bounded_and_does_not_depend_on_the_order_or_on_repetition(jobs, order, later, own):
    memory = struck(*jobs)
    assert len(memory.strikes) <= MAX_STRIKES
    nodes = [each.node for each in memory.strikes]
    assert all(nodes.count(node) <= MAX_STRIKES_OF_NODE for node in nodes)
    shuffled = MEMORY
    for index in [*order, *order]:
        if index < len(jobs):
            shuffled = merged(shuffled, strikes_of(f"team/job-{index}", jobs[index]), NOW)
    assert set(shuffled.strikes) == set(memory.strikes)
    now, then = remembered(memory, NOW), remembered(memory, NOW + later)
    assert set(then) <= set(now) or len(now) == MAX_AVOIDED, "without news, nodes are only forgotten"
    avoided = names(avoided_nodes(memory, own, NOW))
    assert len(avoided) <= MAX_AVOIDED
    assert len(set(avoided)) == len(avoided)
    blamed = {each.cause.node for each in own} | set(nodes)
    assert set(avoided) <= blamed
