"""Kueue itself, from admission to preemption, and everything that its administrators may do to a job."""

import asyncio

from tests.support.cluster.gangs import KUEUE, QUOTA, away
from tests.support.cluster.operators import until

from torchyard.kubernetes.client.api import MERGE_PATCH

TEAM = {"queue": "team"}
BOOST = "kueue.x-k8s.io/priority-boost"


async def test_a_gang_waits_for_quota_and_runs_where_its_flavor_says(gangs, team):
    await gangs.submit("first", **TEAM)
    status = await gangs.trains("first")
    message = f"queue team: quota is reserved in cluster queue {team.name}"
    assert status["gang"] == {"enforcedBy": "kueue", "admitted": True, "message": message}
    for pod in (await gangs.jobs.pods("first")).values():
        assert pod["spec"]["nodeSelector"] == {"torchyard.dev/plans": gangs.lane.kubelet.node}
        assert {"key": "torchyard.dev/plans", "operator": "Exists"} in pod["spec"]["tolerations"]
    await gangs.submit("second", gang="auto", **TEAM)
    status = await gangs.waits("second", "WaitingForQuota")
    assert status["state"] == "Queued"
    assert "insufficient unused quota for memory" in status["message"]
    assert (status["gang"]["enforcedBy"], status["gang"].get("admitted", False)) == ("kueue", False)
    assert not await gangs.jobs.pods("second")
    await gangs.submit("huge", nodes=3, **TEAM)
    assert "maximum capacity" in (await gangs.waits("huge", "ExceedsMaxQuota"))["message"]
    await gangs.ends("first")
    await gangs.trains("second", 1)
    await gangs.ends("second")
    await team.is_free()
    for name in ("first", "second"):
        conditions = (await gangs.object_of(name))["status"]["conditions"]
        (end,) = [each for each in conditions if each["type"] == "Finished"]
        assert (end["status"], end["reason"]) == ("True", "Succeeded")


async def test_a_preempted_gang_saves_gives_its_quota_back_and_continues(gangs, team):
    low, high = await team.priority("low", 10), await team.priority("high", 100)
    await gangs.submit("low", workloadPriorityClass=low, **TEAM)
    await gangs.trains("low", 1)
    await gangs.submit("high", workloadPriorityClass=high, **TEAM)
    status = await gangs.waits("low", "Preempted")
    assert "the job continues by itself" in status["message"]
    await gangs.trains("high", 1)
    status = await gangs.jobs.status("low")
    assert status["state"] == "Suspended"
    assert not await gangs.jobs.pods("low")
    (attempt,) = status["attempts"]
    assert (attempt["reason"], attempt.get("counted", False)) == ("Preempted", False)
    await gangs.ends("high")
    status = await gangs.trains("low", 2)
    assert status.get("restarts", {}).get("counted", 0) == 0
    assert (await gangs.ends("low"))["state"] == "Succeeded"
    await team.is_free()
    assert gangs.lane.kubelet.overlaps == {}


async def test_whatever_is_missing_or_stopped_has_a_sentence_and_loses_nothing(gangs, team):
    await gangs.submit("job", gang="kueue", queue="other")
    await gangs.waits("job", "QueueNotFound")
    await gangs.submit("auto", gang="auto", queue="other")
    status = await gangs.waits("auto", "QueueNotFound")
    assert "the namespace has no LocalQueue of kueue of this name" in status["message"]
    await team.edit(stopPolicy="Hold")
    await team.local_queue("other")
    await gangs.waits("job", "QueueStopped")
    await team.edit(stopPolicy="None")
    first = await gangs.first_of("job", "auto")
    await team.edit(stopPolicy="HoldAndDrain")
    status = await gangs.jobs.until(first, lambda now: now["state"] == "Suspended")
    assert status["reason"] == "Preempted"
    await team.is_free()
    await team.edit(stopPolicy="None")
    first = await gangs.first_of("job", "auto")
    await gangs.ends(first)
    (second,) = {"job", "auto"} - {first}
    running = await gangs.trains(second)
    await team.delete("localqueues", "other")
    await team.delete("clusterqueues")
    await gangs.ends(second)
    assert (await gangs.jobs.status(second))["round"] == running["round"]
    await team.is_gone()  # before that Kueue calls it inactive
    await gangs.submit("late", queue="team")
    await gangs.waits("late", "QueueNotFound")
    assert (await gangs.jobs.status("late"))["state"] == "Queued"


async def test_a_workload_deleted_by_hand_costs_no_step(gangs, team):
    await gangs.submit("job", **TEAM)
    await gangs.trains("job", 1)
    before = await gangs.object_of("job")
    path = f"{gangs.objects}/{before['metadata']['name']}"
    await gangs.jobs.api.request("DELETE", path, body={})

    async def again() -> bool:
        listed = [each for each in await gangs.listed() if each["metadata"]["uid"] != before["metadata"]["uid"]]
        return bool(listed) and "admission" in listed[0].get("status", {})

    await until(again, why=lambda: "the Workload is not admitted again")
    assert (await gangs.jobs.status("job"))["round"] == 1
    await gangs.jobs.api.request("PATCH", path, body={"spec": {"active": False}}, content_type=MERGE_PATCH)
    status = await gangs.jobs.until("job", lambda now: now["state"] == "Suspended")
    assert status["gang"]["message"] == "Kueue: Deactivated: The workload is deactivated"
    assert status["reason"] == "Preempted"
    await team.is_free()
    await gangs.jobs.api.request("PATCH", path, body={"spec": {"active": True}}, content_type=MERGE_PATCH)
    await gangs.trains("job", 2)
    await gangs.jobs.edit("job", suspend=True)
    await gangs.jobs.until("job", lambda now: (now["state"], now["reason"]) == ("Suspended", "Suspended"))
    await gangs.no_leak()
    await gangs.jobs.edit("job", suspend=False)
    await gangs.trains("job", 3)
    await gangs.jobs.api.request("DELETE", f"{gangs.jobs.path}/job", body={})
    await gangs.no_leak()
    await team.is_free()


async def test_jobs_train_and_end_while_kueue_is_away(api, gangs, team):
    await gangs.submit("first", **TEAM)
    await gangs.trains("first", 1)
    async with away(api, "kueue"):
        await gangs.submit("second", **TEAM)
        status = await gangs.jobs.until("second", lambda now: now["state"] == "Queued")
        assert status["message"]
        status = await gangs.ends("first")
        assert (status["state"], status["round"]) == ("Succeeded", 1)
    await gangs.trains("second", 1)
    await gangs.ends("second")
    await team.is_free()


async def test_the_place_in_the_queue_is_served_by_the_api_server(api, gangs, team):
    await gangs.submit("first", **TEAM)
    await gangs.trains("first", 1)
    await asyncio.gather(*(gangs.submit(name, **TEAM) for name in ("second", "third")))
    for name in ("second", "third"):  # Kueue may look at the first of them alone
        await gangs.jobs.until(name, lambda now: now.get("reason") in {"WaitingForQuota", "WaitingInQueue"})
    path = f"{KUEUE.replace('kueue', 'visibility.kueue')}/namespaces/{gangs.jobs.namespace}/localqueues/team"

    async def has_positions() -> bool:
        return b"positionInLocalQueue" in await api.request("GET", f"{path}/pendingworkloads")

    await until(has_positions, why=lambda: "no Workload has a position")


async def test_a_job_whose_flavor_or_admission_check_is_missing_waits_with_its_name(gangs, team):
    check = await team.admission_check()
    await gangs.submit("job", **TEAM)
    status = await gangs.jobs.until("job", lambda now: f"{check} is Pending" in now.get("message", ""))
    assert (status["state"], status["reason"]) == ("Queued", "WaitingForAdmissionChecks")
    assert not await gangs.jobs.pods("job")
    workload = (await gangs.object_of("job"))["metadata"]["name"]
    await team.answer(workload, "Ready", "there is a node", annotations={"torchyard.dev/test": "from the check"})
    await gangs.trains("job", 1)
    for pod in (await gangs.jobs.pods("job")).values():
        assert pod["metadata"]["annotations"]["torchyard.dev/test"] == "from the check"
    await gangs.ends("job")
    await team.edit(resourceGroups=team.groups("absent", memory=QUOTA), admissionChecksStrategy=None)
    await gangs.submit("late", **TEAM)
    status = await gangs.waits("late", "FlavorNotFound")  # once the operator has looked at the queue again
    assert (status["state"], "absent" in status["message"]) == ("Queued", True), status["message"]


async def test_a_quota_for_a_part_of_the_gang_starts_nothing(gangs, team):
    await team.edit(resourceGroups=team.groups(memory="600Gi"))  # one and a half pods
    await gangs.submit("job", **TEAM)
    status = await gangs.waits("job", "ExceedsMaxQuota")
    assert "maximum capacity" in status["message"]
    assert not await gangs.jobs.pods("job")
    assert await team.used() == 0
    await team.edit(resourceGroups=team.groups(memory=QUOTA))
    await gangs.trains("job", 1)
    await gangs.ends("job")


async def test_the_priority_boost_chooses_the_gang_that_is_preempted(api, gangs, team):
    low, high = await team.priority("low", 10), await team.priority("high", 100)
    for name in ("older", "newer"):
        await gangs.submit(name, nodes=1, workloadPriorityClass=low, **TEAM)
        await gangs.trains(name, 1)
    workload = (await gangs.object_of("older"))["metadata"]["name"]
    body = {"metadata": {"annotations": {BOOST: "-4"}}}
    await api.request("PATCH", f"{gangs.objects}/{workload}", body=body, content_type=MERGE_PATCH)
    await gangs.submit("high", nodes=1, workloadPriorityClass=high, **TEAM)
    await gangs.waits("older", "Preempted")  # without the boost Kueue takes the one that was admitted last
    await gangs.trains("high", 1)
    assert (await gangs.jobs.status("newer"))["state"] == "Running"


async def test_an_elastic_gang_has_the_pods_that_its_quota_allows(gangs, team):
    await team.edit(resourceGroups=team.groups(memory="1000Gi"))  # two pods and a half
    elastic = {"minNodes": 1, "maxNodes": 4, "wait": "1s", "cooldown": "0s"}
    await gangs.submit("job", elastic=elastic, **TEAM)
    await gangs.jobs.until("job", lambda now: now["state"] == "Running" and now["nodes"]["ready"] == 2)
    await gangs.jobs.edit("job", nodes=4)
    await gangs.jobs.until("job", lambda now: "for 2 of 4 pods: " in now["gang"]["message"])
    assert len(await gangs.jobs.pods("job")) == 2
    await gangs.jobs.edit("job", nodes=1)
    await gangs.jobs.until("job", lambda now: len(now["rendezvous"]["members"]) == 1)
    await gangs.submit("other", nodes=1, **TEAM)  # in the quota that was given back
    await gangs.trains("other", 1)
    await gangs.ends("job")
    await gangs.ends("other")
    await team.is_free()
