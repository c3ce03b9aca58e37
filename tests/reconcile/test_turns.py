"""A leader that loses its lease again and again comes to every job."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.reconcile.running_controller import KEY, controlled, pass_time
from tests.support.reconcile.world import Ports, World
from tests.support.virtual_time import virtual_time

from torchyard.api.status import TrainingJobStatus
from torchyard.reconcile.loop.turns import Turns
from torchyard.reconcile.ports import Unavailable


def jobs(world: World, number: int, *, state: str = "Pending"):
    status = TrainingJobStatus(state=state)
    return [
        replace(world.job, metadata=replace(world.job.metadata, name=f"job-{index}"), status=status)
        for index in range(number)
    ]


@given(number=st.integers(1, 40), writes=st.lists(st.integers(1, 7), min_size=40, max_size=40))
def test_with_room_for_a_few_writes_in_each_term_every_job_gets_its_turn(number, writes):
    turns, known, reached = Turns(), jobs(World(1), number), set()
    for term, room in enumerate(writes):
        for key in turns.order(known)[:room]:
            turns.done(key)
            reached.add(key)
        assert len(reached) >= min(number, term + 1)
    assert len(reached) == number


def test_jobs_without_a_state_come_first_and_deleted_jobs_are_forgotten():
    turns, known = Turns(), jobs(World(1), 3)
    for job in known:
        turns.done(job.key)
    new = replace(known[2], status=TrainingJobStatus())
    assert [name for _, name in turns.order([known[1], known[0], new])] == ["job-2", "job-0", "job-1"]
    turns.order(known[:1])
    assert [name for _, name in turns.order(known)] == ["job-1", "job-2", "job-0"]


@virtual_time
async def test_only_a_reconcile_without_an_error_is_a_turn():
    world = World(1)
    ports, turns = Ports(world), []
    ports.failing["write_status"] = [Unavailable("one does not hold the lease", retry_after=30.0)]
    async with controlled(world, ports, done=turns.append):
        await pass_time(world, 1)
        assert turns == []
        await pass_time(world, 60)
    assert set(turns) == {KEY}
