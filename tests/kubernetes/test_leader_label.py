"""Agents find the leader by a label on its pod: no other pod can attract them."""

import asyncio

from aiohttp import web
from tests.support.kubernetes.api_server import talking, until

from torchyard.kubernetes import election
from torchyard.kubernetes.client.api import Fence
from torchyard.kubernetes.election import LABEL, LeaderLabel


async def test_who_leads_no_more_takes_its_label_off_and_sets_none(tmp_path, monkeypatch):
    monkeypatch.setattr(election, "RETRY_SECONDS", 0.01)
    labels, checks, leads = {"other": "true"}, [], False

    async def answer(request):
        if request.method == "GET":
            items = [{"metadata": {"name": name}} for name, value in labels.items() if value]
            return web.json_response({"items": items})
        labels[request.path.rpartition("/")[2]] = (await request.json())["metadata"]["labels"][LABEL]
        return web.json_response({})

    def clock():
        checks.append(leads)
        return 0.0 if leads else 2.0

    fence = Fence("one", clock=clock)
    fence.until = 1.0
    async with talking(tmp_path, answer, monkeypatch) as api:
        label = LeaderLabel(api, namespace="torchyard", pod="one", fence=fence)
        moving = asyncio.create_task(label.move_here())
        await until(lambda: len(checks) > 2)
        assert labels == {"other": "true"}
        leads = True
        await moving
        assert labels == {"one": "true", "other": None}
        leads = False
        await label.take_off()
        assert labels == {"one": None, "other": None}
