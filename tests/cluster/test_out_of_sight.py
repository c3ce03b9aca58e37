"""Pods that run although the operator no longer sees them: none replaces them, and no other agent poses as theirs."""

import json
import signal

from tests.support.cluster.jobs import SLEEPS, Jobs, counts
from tests.support.cluster.operators import until

from torchyard.kubernetes.client.api import MERGE_PATCH, Api

UNLABEL = {"metadata": {"labels": {"torchyard.dev/job-uid": None}}}


async def test_a_pod_whose_label_is_taken_away_goes_before_another_one_comes(api, namespace, operator):
    jobs = Jobs(api, namespace)
    await jobs.submit("bare", command=SLEEPS, nodes=1, gracePeriod="5s")
    await jobs.until("bare", lambda now: now.get("round", 0) >= 1)
    (name,) = await _live(api, jobs)
    await api.request("PATCH", f"{jobs.core}/pods/{name}", body=UNLABEL, content_type=MERGE_PATCH)
    seen: set[str] = set()

    async def replaced() -> bool:
        nonlocal seen
        seen = await _live(api, jobs)
        assert len(seen) < 2, "two pods of one index"
        return bool(seen) and name not in seen

    await until(replaced, why=lambda: f"pods: {sorted(seen)}")
    (lost,) = (each for each in (await jobs.status("bare"))["attempts"] if each.get("cause", {}).get("pod") == name)
    assert lost["reason"] == "PodLost"
    assert "its label torchyard.dev/job-uid was removed" in lost["cause"]["exception"]


async def test_a_gang_that_trains_unheard_is_said_to_and_shown_with_its_last_figures(api, namespace, make_operator):
    jobs, one, two = Jobs(api, namespace), make_operator(name="one"), make_operator(name="two")
    one.start()
    await until(one.leads)
    await jobs.submit("long", command=counts(steps=1_000_000, seconds=0.1), gracePeriod="2s")
    before = await jobs.trains("long", beyond=10)
    one.signal(signal.SIGTERM)
    assert await one.ended() == 0
    two.start()  # elsewhere: the agents go on asking the first one
    status = await jobs.until("long", lambda now: now.get("reason") == "AgentSilent")
    assert status["state"] == "Running"
    (name,) = await _live(api, jobs)
    assert f"({name}; it is not known whether they train)" in status["message"]
    assert status["columns"]["step"].endswith("/1000000")
    assert status["columns"]["rate"].endswith("/s")
    assert len(await jobs.announced("long", "AgentSilent")) == 1
    assert status.get("restarts") == before.get("restarts")


async def _live(api: Api, jobs: Jobs) -> set[str]:
    """Pods of the namespace whose containers may run."""
    found = json.loads(await api.request("GET", f"{jobs.core}/pods"))["items"]
    return {each["metadata"]["name"] for each in found if each["status"].get("phase") not in {"Succeeded", "Failed"}}
