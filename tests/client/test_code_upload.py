"""Code on a cluster: ConfigMaps that belong to the jobs that use them, and a job that notes when its code is there."""

import asyncio
import base64
import contextlib
import json
import random

import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import kubeconfig, refused, serving

import torchyard as ty
from torchyard.client.bundle.attach import packed
from torchyard.client.errors import TorchYardError
from torchyard.client.remote.code_upload import owner_of, upload
from torchyard.client.remote.session import Remote
from torchyard.client.request import requested
from torchyard.kubernetes.client.errors import AlreadyExists, Details, NotFound

JOBS = "/apis/torchyard.dev/v1alpha1/namespaces/team/trainingjobs"
MAPS = "/api/v1/namespaces/team/configmaps"


class Cluster:
    """Jobs and ConfigMaps as an API server keeps them, owners merged by uid, and its garbage collector."""

    def __init__(self):
        self.jobs, self.maps, self.order = {}, {}, []

    async def request(self, verb, path, *, body=None, **_options):
        await asyncio.sleep(0)
        return json.dumps(self.answer(verb, path, body)).encode()

    def answer(self, verb, path, body):
        name = path.rpartition("/")[2]
        self.order.append((verb, path.split("/")[-1 if verb == "POST" else -2]))
        if path == JOBS:
            name = body["metadata"]["name"]
            self.jobs[name] = body | {"metadata": body["metadata"] | {"uid": f"uid-{name}"}}
            return self.jobs[name]
        if path.startswith(JOBS):
            annotations = self.jobs[name]["metadata"].setdefault("annotations", {})
            annotations.update(body["metadata"]["annotations"])
            return self.jobs[name]
        if verb == "POST":
            name = body["metadata"]["name"]
            if name in self.maps:
                raise AlreadyExists(name)
            self.maps[name] = body
            return body
        if name not in self.maps:
            raise NotFound(name, Details())
        owners = {each["uid"]: each for each in self.maps[name]["metadata"]["ownerReferences"]}
        owners |= {each["uid"]: each for each in body["metadata"]["ownerReferences"]}
        self.maps[name]["metadata"]["ownerReferences"] = list(owners.values())
        return self.maps[name]

    def collect(self):
        live = {each["metadata"]["uid"] for each in self.jobs.values()}
        for name, each in list(self.maps.items()):
            if not live & {owner["uid"] for owner in each["metadata"]["ownerReferences"]}:
                del self.maps[name]


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("import sub.model\n")
    (folder / "sub" / "model.py").write_text("VALUE = 1\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    return folder


@contextlib.asynccontextmanager
async def served(cluster, tmp_path, monkeypatch, forbidden=()):
    async def answer(request):
        if any(word in request.path for word in forbidden):
            return refused(403, "Forbidden", "configmaps is forbidden")
        try:
            return web.json_response(cluster.answer(request.method, request.path, await request.json()))
        except AlreadyExists:
            return refused(409, "AlreadyExists", "exists")

    async with serving(answer) as url:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, url, namespace="team")))
        yield


async def test_a_folder_is_sent_after_its_job_which_then_notes_that_it_has_arrived(project, tmp_path, monkeypatch):
    cluster = Cluster()
    async with served(cluster, tmp_path, monkeypatch):
        await ty.aio.submit("train.py", code=".", arguments=["--lr", "1"])
        await ty.aio.submit("train.py", code=".", name="second")
    job = cluster.jobs["train"]
    digest = job["spec"]["code"]["digest"]
    assert job["spec"]["command"] == ["torchrun", "--", "train.py"]
    assert "script" not in job["spec"]
    assert job["metadata"]["annotations"] == {"torchyard.dev/code": digest}
    kinds = ["trainingjobs", "configmaps", "trainingjobs"]
    assert [kind for _, kind in cluster.order] == [*kinds, "trainingjobs", "configmaps", "configmaps", "trainingjobs"]
    ((name, part),) = cluster.maps.items()
    assert name == f"torchyard-code-{digest[:12]}-0"
    assert part["immutable"] is True
    assert {each["name"] for each in part["metadata"]["ownerReferences"]} == {"train", "second"}
    assert base64.b64decode(part["binaryData"]["part"])[:2] == b"\x1f\x8b"


async def test_a_user_who_may_not_create_config_maps_learns_it(project, tmp_path, monkeypatch):
    async with served(Cluster(), tmp_path, monkeypatch, forbidden=["configmaps"]):
        with pytest.raises(TorchYardError, match=r"the job 'train' waits for its code.*ask for the right to create"):
            await ty.aio.submit("train.py", code=".")


async def test_no_config_map_is_an_orphan_after_a_thousand_submissions_some_of_which_are_killed(project):
    cluster, chance = Cluster(), random.Random(7)
    sent = packed(requested("train.py", "cluster", code=".").job, project, lambda _sentence: None)
    remote = Remote(cluster, "team", "test", "")
    for number in range(1000):
        digest = f"{number % 9:x}" * 64
        job = await cluster.request(
            "POST", JOBS, body={"apiVersion": "a/v1", "kind": "J", "metadata": {"name": f"{number}"}}
        )
        sending = asyncio.create_task(upload(remote, owner_of(json.loads(job)), digest, sent.parts * 3))
        if chance.random() < 0.2:
            await asyncio.sleep(0)
            sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        if chance.random() < 0.5:
            del cluster.jobs[chance.choice([*cluster.jobs])]
            cluster.collect()
    assert cluster.maps
    cluster.jobs.clear()
    cluster.collect()
    assert cluster.maps == {}


def test_a_script_outside_of_the_folder_is_refused(project):
    with pytest.raises(TorchYardError, match=r"train.py is not in the folder of --code"):
        requested("train.py", "cluster", code="sub")


def test_a_program_starts_in_the_folder_in_which_it_was_typed(project, monkeypatch):
    monkeypatch.chdir(project / "sub")
    spec = requested("model.py", "cluster", code="..").job.spec
    assert (spec.command, spec.working_dir) == (["torchrun", "model.py"], "sub")
