"""One gang, one configuration; one job, one folder: what only kubelets, claims and edits by hand can show."""

import json

import pytest
from tests.support.cluster.jobs import SLEEPS, Jobs, python
from tests.support.cluster.operators import AGENT_IMAGE, until
from tests.support.cluster.training import CLAIM

from torchyard.kubernetes.client.api import MERGE_PATCH
from torchyard.kubernetes.client.errors import NotFound

PRINTS = python("import os, time; print(os.environ['LR'], flush=True); time.sleep(900)")


@pytest.fixture
def jobs(api, namespace, operator) -> Jobs:
    return Jobs(api, namespace)


async def uids(jobs, name):
    pods = await jobs.pods(name)
    return {pod["metadata"]["uid"] for pod in pods.values() if "deletionTimestamp" not in pod["metadata"]}


async def test_an_edited_config_map_replaces_the_whole_gang(jobs):
    await jobs.make("configmaps", "settings", data={"LR": "0.1"})
    await jobs.submit("job", command=PRINTS, nodes=2, envFrom=[{"configMap": "settings"}], gracePeriod="1s")
    status = await jobs.until("job", lambda now: now.get("round") == 1)
    before = await uids(jobs, "job")
    assert status["images"]["agent"]
    path = f"{jobs.core}/configmaps/settings"
    await jobs.api.request("PATCH", path, body={"data": {"LR": "0.2"}}, content_type=MERGE_PATCH)
    await jobs.lose("job", 1)
    status = await jobs.until("job", lambda now: now.get("round") == 2)
    assert [each["reason"] for each in status["attempts"][:2]] == ["PodLost", "GangDiffers"], status["attempts"]
    assert "read different config maps, secrets, script or configuration" in json.dumps(status["attempts"][1])
    assert status["restarts"].get("counted", 0) == 0
    assert not before & await uids(jobs, "job")


async def test_patched_parameters_replace_the_whole_gang(jobs):
    trainer = {"name": "cvrp", "params": {"preset": "tiny", "steps": 100000, "lr": 0.001}}
    # Started without a warm process: what its workers would import is not waited for.
    await jobs.submit("job", trainer=trainer, nodes=2, gracePeriod="1s", launcher={"warmStart": False})
    await jobs.until("job", lambda now: now.get("round") == 1)
    before = await uids(jobs, "job")
    await jobs.edit("job", trainer={"params": {"lr": 0.01}})
    (message, *_) = await jobs.announced("job", "ConfigurationChanged")
    assert "before the next round" in message
    assert await uids(jobs, "job") == before
    await jobs.lose("job", 1)
    await jobs.until("job", lambda now: now.get("round") == 2)
    assert not before & await uids(jobs, "job"), "the pod that was not lost is replaced, too"


async def test_a_gang_keeps_its_images_when_the_installation_gets_others(api, namespace, make_operator):
    jobs = Jobs(api, namespace)

    async def trainers():
        found = (await jobs.pods("job")).values()
        return {pod["spec"]["containers"][0]["image"] for pod in found if "deletionTimestamp" not in pod["metadata"]}

    operator = make_operator()
    operator.start()
    await jobs.submit("job", command=SLEEPS, nodes=2, gracePeriod="1s")
    await jobs.until("job", lambda now: now.get("round") == 1)
    images = await trainers()
    assert len(images) == 1
    operator.stop()
    operator.start("--trainer-image", AGENT_IMAGE)
    await jobs.lose("job", 1)
    await jobs.until("job", lambda now: now.get("round") == 2)
    assert await trainers() == images
    # A suspended job has no gang: the next one gets what is installed then.
    await jobs.edit("job", suspend=True)
    await jobs.until("job", lambda now: now.get("state") == "Suspended")
    await jobs.edit("job", suspend=False)
    await jobs.until("job", lambda now: now.get("round") == 3)
    assert await trainers() == {AGENT_IMAGE} != images


FOLDER = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["TORCHYARD_CHECKPOINT_DIR"])
found = (folder / "result").exists()
(folder / "result").write_text("x")
sys.exit(9 if found else 0)
"""


async def test_a_recreated_job_starts_over_on_its_claim(jobs):
    await jobs.make("persistentvolumeclaims", "runs", spec=CLAIM)
    warnings = []
    for _ in range(2):
        await jobs.submit("job", command=python(FOLDER), nodes=1, checkpoint={"volume": {"claim": "runs"}})
        status = await jobs.ends("job")
        assert status["state"] == "Succeeded", status["message"]
        warnings.append(" ".join(status.get("warnings", ())))
        await jobs.api.request("DELETE", f"{jobs.path}/job", body={"propagationPolicy": "Foreground"})
        await until(lambda: gone(jobs), why=lambda: "the job is still there")
    first, second = warnings
    assert first == ""
    assert "moved to /torchyard/checkpoints/job-old-1, and this job starts over" in second


async def gone(jobs):
    try:
        await jobs.status("job")
    except NotFound:
        return True
    return False
