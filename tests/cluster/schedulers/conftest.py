"""A played node and an operator that may use one gang scheduler: `gangs` is parametrized by its name."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.cluster.plans.kubelet import node
from tests.cluster.plans.lane import lane
from tests.support.cluster.gangs import Gangs, Queues, queues, served

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.schedulers)


@pytest.fixture
async def gangs(api, certificates, tmp_path, request) -> AsyncIterator[Gangs]:
    scheduler = getattr(request, "param", "kueue")
    objects = await served(api, scheduler)
    name = f"ty-gangs-{secrets.token_hex(3)}"
    async with node(api, name) as heart, lane(api, name, certificates, tmp_path, ("--schedulers", scheduler)) as one:
        one.heart = heart
        yield Gangs(one, scheduler, objects)


@pytest.fixture
async def team(api, gangs) -> AsyncIterator[Queues]:
    """The queues of Kueue for these gangs."""
    async with queues(api, gangs.jobs.namespace, gangs.lane.kubelet.node) as made:
        yield made
