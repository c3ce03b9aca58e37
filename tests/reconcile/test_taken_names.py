"""A pod of others that has the name of one of ours costs a new name, and no time."""

from tests.support.reconcile.running_controller import KEY, controlled, pass_time
from tests.support.reconcile.world import Ports, World
from tests.support.virtual_time import virtual_time

from torchyard.reconcile.ports import NameTaken


class Squatted(Ports):
    """Names that are taken: those of the first incarnations."""

    def __init__(self, world, taken):
        super().__init__(world)
        self.taken, self.tried = taken, []

    async def create_pod(self, job, action):
        self.tried.append(action.name)
        if action.name in self.taken:
            raise NameTaken(f"pod {action.name}")
        await super().create_pod(job, action)


@virtual_time
async def test_a_gang_whose_names_are_taken_gets_others_within_a_second():
    world = World(2)
    taken = {f"job-{number}-{index}" for number in range(40) for index in range(2)} - {"job-0-0"}
    ports = Squatted(world, taken)
    async with controlled(world, ports) as (controller, _):
        await pass_time(world, 10)
        assert sorted(pod.index for pod in world.pods.values()) == [0, 1]
        assert not {pod.name for pod in world.pods.values()} & taken
        assert world.status.incarnation < 1000
        assert world.status.reason == "WaitingForPods"
        tried = len(ports.tried)
        world.start_pods()
        controller.enqueue(KEY)
        await pass_time(world, 5)
        assert world.status.round == 1, "the real gang trains"
        assert len(ports.tried) == tried
