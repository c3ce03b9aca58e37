"""A controller at work on a world in memory."""

import asyncio
from contextlib import asynccontextmanager

from tests.support.reconcile.world import START, Ports

from torchyard.reconcile.loop.controller import Controller

KEY = ("default", "job")


@asynccontextmanager
async def controlled(world, ports=None, **given):
    ports = ports or Ports(world)
    loop = asyncio.get_running_loop()
    controller = Controller(ports, ports, clock=lambda: START + loop.time(), **given)
    task = asyncio.create_task(controller.run())
    controller.enqueue(KEY)
    yield controller, ports
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await controller.close()


async def pass_time(world, seconds):
    await asyncio.sleep(seconds)
    world.now = START + asyncio.get_running_loop().time()
