"""`torchyard fetch` from pods that share no disk: each has a checkpoint folder of its own."""

import asyncio
import json

import pytest
from aiohttp import web
from tests.support.cli.cluster import cluster, objects

from torchyard.kubernetes.manifests import names

WELL = b"\x03" + json.dumps({"status": "Success"}).encode()
BADLY = b"\x03" + json.dumps({"status": "Failure", "message": "command terminated with non-zero exit code"}).encode()


class Pods:
    """Two pods, each with a folder; runs what is to be run there."""

    def __init__(self, folder):
        self.folder, self.asked, self.spec = folder, [], {}

    async def answer(self, request):
        parts = request.path.split("/")
        if parts[-1] != "exec":
            return objects(request, **self.spec)
        self.asked.append(parts[-2])
        words = [
            word.replace(names.CHECKPOINTS, str(self.folder / parts[-2])) for word in request.query.getall("command")
        ]
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)
        output, errors = await process.communicate()
        for message in (b"\x01" + output, b"\x02" + errors, BADLY if process.returncode else WELL):
            await socket.send_bytes(message)
        await socket.close()
        return socket

    def write(self, pod, name, text):
        path = self.folder / pod / "cvrp" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def pods(tmp_path):
    made = Pods(tmp_path / "pods")
    for rank, pod in enumerate(("cvrp-0-0", "cvrp-0-1")):
        made.write(pod, f"profile/trace-rank-{rank}", "a trace")
        made.write(pod, "profile/both", f"of {pod}")
    made.write("cvrp-0-1", "only/here", "x")
    made.write("cvrp-0-0", "metrics.jsonl", "{}")
    return made


async def fetch(torchyard, pods, path):
    async with cluster(torchyard, pods.answer):
        return await asyncio.to_thread(torchyard, "fetch", "cvrp", path, "-o", "got", "-n", "team")


async def test_a_folder_is_what_all_of_them_have_in_it(torchyard, pods):
    done = await fetch(torchyard, pods, "profile")
    assert (done.returncode, done.stdout.startswith("got: 3 files, ")) == (0, True), done
    got = torchyard.folder / "got"
    assert sorted(path.name for path in got.iterdir()) == ["both", "trace-rank-0", "trace-rank-1"]
    assert (got / "both").read_text() == "of cvrp-0-0"
    assert {path.name for path in torchyard.folder.iterdir()} == {"got", "kubeconfig", "pods"}


async def test_what_one_of_them_has_is_found_there(torchyard, pods):
    assert (await fetch(torchyard, pods, "only")).returncode == 0
    assert (torchyard.folder / "got" / "here").read_text() == "x"


async def test_a_file_is_the_first_pods(torchyard, pods):
    assert (await fetch(torchyard, pods, "metrics.jsonl")).returncode == 0
    assert pods.asked == ["cvrp-0-0"]


async def test_of_pods_that_share_a_claim_one_is_asked(torchyard, pods):
    pods.spec = {"checkpoint": {"volume": {"claim": "runs"}}}
    assert (await fetch(torchyard, pods, "profile")).returncode == 0
    assert pods.asked == ["cvrp-0-0"]


async def test_what_no_pod_has_is_rejected_with_the_message_of_the_first(torchyard, pods):
    done = await fetch(torchyard, pods, "export/web")
    assert done.returncode == 1
    assert "it has no export/web; it has metrics.jsonl, profile" in done.stderr
    assert not (torchyard.folder / "got").exists()


@pytest.mark.parametrize("ended", [1, 2])
async def test_a_pod_that_has_ended_although_the_api_server_says_that_it_runs(torchyard, pods, ended):
    refused = []

    async def answer(request):
        if request.path.endswith("/exec") and len(refused) < ended:
            refused.append(request.path)
            return web.json_response({"kind": "Status", "code": 500}, status=500)
        over = len(refused) == 2 and request.path.endswith("/pods")
        return web.json_response({"kind": "PodList", "items": []}) if over else await pods.answer(request)

    async with cluster(torchyard, answer):
        done = await asyncio.to_thread(torchyard, "fetch", "cvrp", "profile", "-o", "got", "-n", "team")
    if ended == 1:
        assert done.returncode == 0, done
        assert (torchyard.folder / "got" / "both").read_text() == "of cvrp-0-1", "the other pod has it, too"
    else:
        assert "no pod of 'cvrp' runs, and its files were deleted with them" in done.stderr


async def test_a_user_who_may_not_run_commands_reads_which_right_is_missing(torchyard, pods):
    async def answer(request):
        if request.path.endswith("/exec"):
            return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403)
        return await pods.answer(request)

    async with cluster(torchyard, answer):
        done = await asyncio.to_thread(torchyard, "fetch", "cvrp", "profile", "-o", "got", "-n", "team")
    assert done.returncode == 1
    assert "you may not execute commands in the pods of namespace team" in done.stderr
    assert "ask for pods/exec" in done.stderr
