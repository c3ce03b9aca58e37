"""A right that is missing may be the one to say so in the status."""

from tests.support.reconcile.running_controller import KEY, controlled, pass_time
from tests.support.reconcile.world import World
from tests.support.virtual_time import virtual_time

from torchyard.api.spec_reliability import Health
from torchyard.api.values import Duration
from torchyard.reconcile.ports import Refused


@virtual_time
async def test_a_status_that_may_not_be_written_is_announced_once_and_blocks_no_pod(caplog):
    world = World(1, health=Health(pending_timeout=Duration("1m")))
    async with controlled(world) as (controller, ports):
        ports.failing["write_status"] = [
            Refused("Forbidden", "update trainingjobs/status", retry_after=1.0) for _ in range(5)
        ]
        await pass_time(world, 30)
        assert world.status.reason == "WaitingForPods"
        world.start_pods()
        controller.enqueue(KEY)
        await pass_time(world, 60)
        world.vanish(world.at(0))
        controller.enqueue(KEY)
        await pass_time(world, 5)
        assert world.status.state == "Recovering"
        assert len(world.created) == 2
    events = [(event.type, event.reason) for event in world.events]
    told = [record.getMessage() for record in caplog.records]
    assert told == ["default/job: its status cannot be written: Forbidden: update trainingjobs/status"]
    assert events.count(("Warning", "Forbidden")) == 1
