"""Commands in containers over a WebSocket, as `kubectl exec` speaks: output, errors, endings, broken connections."""

import json

import pytest
from aiohttp import WSMsgType, web
from tests.support.kubernetes.api_server import refused, talking

from torchyard.kubernetes.client.errors import NotFound, Rejected
from torchyard.kubernetes.client.exec import CannotRun, CommandFailed, run
from torchyard.reconcile.ports import Unavailable

WELL = (3, json.dumps({"status": "Success"}).encode())
BADLY = (3, json.dumps({"status": "Failure", "message": "command terminated with non-zero exit code"}).encode())


def answering(*messages, seen=None):
    """A kubelet that sends these messages: channel and content."""

    async def answer(request):
        if seen is not None:
            seen.append((request.path, [*request.query.getall("command")], request.query["container"]))
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        for channel, content in messages:
            await socket.send_bytes(bytes([channel]) + content)
        await socket.close()
        assert (await socket.receive()).type in {WSMsgType.CLOSED, WSMsgType.CLOSING, WSMsgType.CLOSE}
        return socket

    return answer


async def output(folder, answer, monkeypatch):
    async with talking(folder, answer, monkeypatch) as api:
        return b"".join([part async for part in run(api, "research", "cvrp-0-0", "trainer", ["python3", "-c", "a b"])])


async def test_stdout_comes_in_order_and_the_command_is_an_argument_vector(tmp_path, monkeypatch):
    seen = []
    answer = answering((1, b"one "), (2, b"a warning"), (1, b""), (1, b"\x00two"), WELL, seen=seen)
    assert await output(tmp_path, answer, monkeypatch) == b"one \x00two"
    assert seen == [("/api/v1/namespaces/research/pods/cvrp-0-0/exec", ["python3", "-c", "a b"], "trainer")]


async def test_a_command_that_fails_says_what_it_said_last(tmp_path, monkeypatch):
    with pytest.raises(CommandFailed, match=r"^it has no export/web$"):
        await output(
            tmp_path, answering((1, b"x"), (2, b"Traceback\n"), (2, b"it has no export/web\n"), BADLY), monkeypatch
        )
    with pytest.raises(CommandFailed, match="non-zero exit code"):
        await output(tmp_path, answering(BADLY), monkeypatch)


async def test_a_broken_connection_does_not_end_the_command(tmp_path, monkeypatch):
    with pytest.raises(Unavailable, match="before the command did"):
        await output(tmp_path, answering((1, b"half of an archive")), monkeypatch)


@pytest.mark.parametrize(
    ("code", "error"), [(404, NotFound), (403, Rejected), (400, Rejected), (500, CannotRun), (503, Unavailable)]
)
async def test_what_the_server_refuses(tmp_path, monkeypatch, code, error):
    async def answer(_request):
        return refused(code, message="no")

    with pytest.raises(error):
        await output(tmp_path, answer, monkeypatch)
