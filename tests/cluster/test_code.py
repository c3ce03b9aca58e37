"""Code that travels to a cluster: it arrives bit-identical, is shared, verified, and edited in running pods."""

import base64
import hashlib
import json
import random

import pytest
from tests.support.cluster.jobs import Jobs
from tests.support.cluster.operators import until

from torchyard.client.bundle.attach import packed
from torchyard.client.cluster import ClusterBackend
from torchyard.client.jobs import creatable
from torchyard.client.remote.session import Remote
from torchyard.client.request import requested

PROGRAM = """
import hashlib, json, os, sys, time
sys.path.insert(0, "/torchyard/bin/torchyard-agent.pyz")
from torchyard_agent import report
found = {}
for root, _, names in os.walk("."):
    for name in names:
        path = os.path.join(root, name)
        with open(path, "rb") as file:
            found[os.path.relpath(path)] = [os.stat(path).st_mode & 0o100, hashlib.sha256(file.read()).hexdigest()]
print(json.dumps([found, sys.argv[1:]]), flush=True)
for step in range(1, 9000):
    report(step=step, total_steps=9000)
    time.sleep(0.2)
"""


class Project:
    """A folder of code, and the jobs that are submitted with it."""

    def __init__(self, api, namespace, folder):
        self.folder, self.said = folder, []
        self.backend = ClusterBackend(Remote(api, namespace, "the cluster under test", ""), self.said.append)
        chance = random.Random(7)
        for name, data in {
            "main.py": PROGRAM.encode(),
            "empty": b"",
            "data/weights.bin": chance.randbytes(1_200_000),
            "größe/模型.txt": "ü\r\n".encode(),
            "run.sh": b"#!/bin/sh\n",
        }.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        (folder / "run.sh").chmod(0o755)

    def files(self):
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        return {
            str(path.relative_to(self.folder)): [
                path.stat().st_mode & 0o100,
                hashlib.sha256(path.read_bytes()).hexdigest(),
            ]
            for path in paths
        }

    def request(self, name, *arguments):
        """Return the object and the code of a job of two nodes."""
        job = {
            "apiVersion": "torchyard.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": {"command": ["python3", "main.py", *arguments], "nodes": 2, "gracePeriod": "2s"},
        }
        wanted = requested(job, "cluster", code=self.folder)
        sent = packed(wanted.job, wanted.folder, self.said.append)
        return creatable(sent.job, wanted.source, None), sent


@pytest.fixture
def project(api, namespace, tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(api, namespace, folder)


async def printed(jobs, name, arguments=()):
    """What each running pod of the job has printed last: the files that its program sees, and its arguments."""
    found = {}

    async def all_print() -> bool:
        found.clear()
        for pod, each in (await jobs.pods(name)).items():
            if each["status"]["phase"] == "Running" and "deletionTimestamp" not in each["metadata"]:
                log = (await jobs.api.request("GET", f"{jobs.core}/pods/{pod}/log", accept="*/*")).decode()
                lines = [line[line.index("[{") :] for line in log.splitlines() if "[{" in line]
                if lines:
                    found[pod] = json.loads(lines[-1])
        return len(found) == 2 and all(said == [*arguments] for _, said in found.values())

    await until(all_print, why=lambda: f"printed: {found}")
    return {pod: files for pod, (files, _) in found.items()}


async def maps(jobs):
    found = json.loads(await jobs.api.request("GET", f"{jobs.core}/configmaps"))["items"]
    return {each["metadata"]["name"]: each for each in found if each["metadata"]["name"].startswith("torchyard-code-")}


async def test_code_arrives_whole_is_shared_and_is_verified_by_every_pod(api, namespace, operator, project):
    jobs = Jobs(api, namespace)
    document, sent = project.request("first")
    # The command is killed after it created the job.
    await project.backend.create(document)
    status = await jobs.until("first", lambda status: status.get("reason") == "CodeMissing")
    assert (status["state"], await jobs.pods("first"), await maps(jobs)) == ("Pending", {}, {})
    await project.backend.create(document, sent)
    assert project.said[-1] == "torchyard: first waits for this code, which is sent now"
    assert all(files == project.files() for files in (await printed(jobs, "first")).values())
    await project.backend.create(*project.request("second"))
    assert len(shared := await maps(jobs)) == len(sent.parts) > 1
    assert all(len(each["metadata"]["ownerReferences"]) == 2 for each in shared.values())
    await project.backend.delete("first")
    await operator.kill()
    operator.start()
    await jobs.trains("second")
    await jobs.lose("second", 1)
    await jobs.until("second", lambda status: status.get("round") == 2 and status.get("state") == "Running")
    assert all(files == project.files() for files in (await printed(jobs, "second")).values())
    # Other code takes the place of a part before a pod used it: while one does, its kubelet keeps what is immutable.
    others = await maps(jobs)
    (project.folder / "empty").write_bytes(b"not any more")
    document, sent = project.request("third")
    document["spec"]["suspend"] = True
    await project.backend.create(document, sent)
    name, part = max((name, each) for name, each in (await maps(jobs)).items() if name not in others)
    await api.request("DELETE", f"{jobs.core}/configmaps/{name}")
    forged = {"name": name, "ownerReferences": part["metadata"]["ownerReferences"]}
    data = {"part": base64.b64encode(b"other code").decode()}
    await jobs.make("configmaps", name, metadata=forged, binaryData=data)
    await jobs.edit("third", suspend=False)
    ended = await jobs.ends("third")
    assert (ended["state"], ended["reason"]) == ("Failed", "CodeMismatch"), ended["message"]
    for each in ("second", "third"):
        await project.backend.delete(each)

    async def collected() -> bool:
        return not await maps(jobs)

    await until(collected)


async def test_an_edit_is_pushed_into_the_pods_that_run_and_lost_pods_find_it_too(api, namespace, operator, project):
    jobs = Jobs(api, namespace)
    await project.backend.replace(*replaced(project.request("job")))
    await jobs.trains("job")
    gang = {*await jobs.pods("job")}
    (project.folder / "data/weights.bin").write_bytes(b"smaller")
    (project.folder / "empty").unlink()
    await project.backend.replace(*replaced(project.request("job", "--lr", "2")))
    assert project.said[-1] == "torchyard: job saves and continues with the new code in its 2 running pods"
    assert all(files == project.files() for files in (await printed(jobs, "job", ["--lr", "2"])).values())
    assert {*await jobs.pods("job")} == gang
    assert "code" in (await jobs.announced("job", "ProgramChanged"))[0]
    status = await jobs.trains("job")
    assert (status["round"], status["restarts"]["total"]) == (2, 0)
    assert status["code"]["digest"].startswith(status["attempts"][-1]["code"])
    await jobs.lose("job", 1)
    await jobs.until("job", lambda status: status.get("round") == 3 and status.get("state") == "Running")
    assert all(files == project.files() for files in (await printed(jobs, "job", ["--lr", "2"])).values())


def replaced(request):
    document, sent = request
    return document, sent.job, sent
