"""A right that is missing may be the one to say so in the status."""

from control import KEY, controlled, pass_time
from virtual import in_virtual_time
from world import World

from torchyard.engine.ports import Refused


def test_a_status_that_may_not_be_written_is_told_in_the_log_once(caplog):
    async def main():
        world = World(1)
        async with controlled(world) as (controller, ports):
            ports.failing["write_status"] = [
                Refused("Forbidden", "update trainingjobs/status", retry_after=1.0) for _ in range(5)
            ]
            controller.enqueue(KEY)
            await pass_time(world, 30)

    in_virtual_time(main)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["default/job: Forbidden: update trainingjobs/status"]
