"""An upgrade restarts no job: what the operator of the commit before started trains on under this one."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.support.cluster import testbed
from tests.support.cluster.jobs import Jobs, python
from tests.support.cluster.operators import code_of, until
from tests.support.cluster.training import CLAIM

FORMER = os.environ.get("TORCHYARD_FORMER", "HEAD~1")
ROOT = Path(__file__).parents[2]
# Both end once the test says so, by a file on their claim, however long a busy machine takes to start an operator.
UNTIL_DONE = "/torchyard/checkpoints/done"
COUNTS = f"""
import os, time
from torchyard_agent import report
step = 0
while not os.path.exists({UNTIL_DONE!r}):
    step += 1
    report(step=step)
    time.sleep(0.5)
"""
WAITS = f"import os, time\nwhile not os.path.exists({UNTIL_DONE!r}):\n    time.sleep(0.5)"
SHORT = {"gracePeriod": "2s", "metrics": {"interval": "1s"}, "checkpoint": {"volume": {"claim": "runs"}}}
KEPT = ("round", "incarnation", "images", "rendezvous", "restarts", "startTime")


@pytest.fixture(scope="session")
def former(tmp_path_factory) -> Path:
    """The sources of the version before, TORCHYARD_FORMER names another one."""
    folder = tmp_path_factory.mktemp("former")
    packed = subprocess.run(["git", "archive", FORMER, "operator", "agent"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode != 0:
        pytest.skip("no commit before this one: fetch the history (git fetch --unshallow), or set TORCHYARD_FORMER")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as sources:
        sources.extractall(folder, filter="data")
    asked = [sys.executable, "-c", "import torchyard; print(torchyard.__file__)"]
    used = subprocess.check_output(asked, env=os.environ | {"PYTHONPATH": code_of(folder)}, text=True)
    assert Path(used).is_relative_to(folder), "the version that is installed is used instead"
    return folder


async def uids(jobs: Jobs, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in (await jobs.pods(name)).values()}


async def test_running_jobs_of_the_version_before_are_not_restarted(api, namespace, make_operator, former):
    jobs = Jobs(api, namespace)
    await jobs.make("persistentvolumeclaims", "runs", spec=CLAIM)
    if why := testbed.skip():
        pytest.skip(why)
    operator = make_operator(pod="operator-0")  # which takes its own lease over, as the container of a Deployment does
    operator.start(source=former)
    await operator.ready()
    await jobs.submit("gang", command=python(COUNTS), nodes=2, **SHORT)
    await jobs.submit("bare", command=python(WAITS), launcher={"kind": "none"}, **SHORT)
    began = {"gang": await jobs.trains("gang"), "bare": await jobs.until("bare", lambda now: now.get("round") == 1)}
    pods = {name: await uids(jobs, name) for name in began}
    await operator.terminate()

    operator.start()
    await operator.ready()
    await until(operator.leads, why=lambda: operator.log.read_text()[-3000:])
    trained = await jobs.trains("gang", beyond=began["gang"]["progress"]["step"] + 4)
    assert {name: trained.get(name) for name in KEPT} == {name: began["gang"].get(name) for name in KEPT}
    testbed.control_plane().run("sh", "-c", f"for claim in /shared/*{namespace}*; do touch $claim/done; done")
    for name in began:
        assert await uids(jobs, name) == pods[name]
        status = await jobs.ends(name)
        assert (status["state"], status["round"], status["restarts"]["total"]) == ("Succeeded", 1, 0), status
        assert len(status["attempts"]) == 1
