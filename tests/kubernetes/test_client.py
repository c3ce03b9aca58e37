"""Requests and watches against a server that answers as API servers do, and as they do on a bad day."""

import asyncio
import json

import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import refused, talking, until

from torchyard.kubernetes.client import api as client
from torchyard.kubernetes.client.api import Budget, Fence
from torchyard.kubernetes.client.errors import AlreadyExists, Conflict, Fenced, Gone, NotFound, Rejected
from torchyard.reconcile import ports
from torchyard.reconcile.ports import Unavailable

PODS = "/api/v1/namespaces/team/pods"


@pytest.fixture
def talk(tmp_path, monkeypatch):
    return lambda answer, user=None: talking(tmp_path, answer, monkeypatch, user)


async def test_a_request_carries_body_query_and_form(talk):
    seen = {}

    async def answer(request):
        seen.update(method=request.method, query=dict(request.query), body=await request.json(), **request.headers)
        return web.json_response({"metadata": {"uid": "u"}}, status=201)

    async with talk(answer) as api:
        answered = await api.request("POST", PODS, params={"fieldManager": "torchyard"}, body={"kind": "Pod"})
    assert json.loads(answered) == {"metadata": {"uid": "u"}}
    assert (seen["method"], seen["query"], seen["body"]) == ("POST", {"fieldManager": "torchyard"}, {"kind": "Pod"})
    assert seen["Content-Type"] == "application/json"
    assert seen["User-Agent"].startswith("torchyard/")
    assert "Authorization" not in seen


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Gone),
        (400, "BadRequest", Rejected),
        (403, "Forbidden", Rejected),
        (413, "RequestEntityTooLarge", Rejected),
        (415, "UnsupportedMediaType", Rejected),
        (422, "Invalid", Rejected),
        (408, "Timeout", Unavailable),
        (429, "TooManyRequests", Unavailable),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Unavailable),
    ],
)
async def test_every_refusal_has_a_meaning(talk, code, reason, expected):
    async def answer(_request):
        return refused(code, reason, "because of this")

    async with talk(answer) as api:
        with pytest.raises(expected, match="because of this") as caught:
            await api.request("PATCH", f"{PODS}/x", body={})
    assert type(caught.value) is expected


def test_conflicts_are_those_of_the_engine():
    assert issubclass(Conflict, ports.Conflict)
    assert issubclass(AlreadyExists, Conflict)
    assert issubclass(Fenced, Unavailable)


async def test_an_invalid_object_names_its_faulty_fields(talk):
    causes = [{"reason": "FieldValueInvalid", "message": "must be >= 0", "field": "spec.grace"}]

    async def answer(_request):
        return refused(422, "Invalid", "Pod is invalid", details={"name": "x", "kind": "Pod", "causes": causes})

    async with talk(answer) as api:
        with pytest.raises(Rejected) as caught:
            await api.request("POST", PODS, body={})
    error = caught.value
    assert (error.code, error.reason, error.message) == (422, "Invalid", "Pod is invalid")
    assert [(cause.field, cause.message) for cause in error.details.causes] == [("spec.grace", "must be >= 0")]


@pytest.mark.parametrize("body", [b"", b"<html>bad gateway</html>", b"\xff\xfe", b"[1, 2]", b'{"message": 7}'])
async def test_an_answer_that_is_not_a_status_is_quoted(talk, body):
    async def answer(_request):
        return web.Response(status=502, body=body)

    async with talk(answer) as api:
        with pytest.raises(Unavailable, match="GET /api/v1/namespaces/team/pods: 502"):
            await api.request("GET", PODS)


@pytest.mark.parametrize(
    ("headers", "fields", "seconds"),
    [
        ({"Retry-After": "30"}, {}, 30.0),
        ({}, {"details": {"retryAfterSeconds": 7}}, 7.0),
        ({"Retry-After": "tomorrow"}, {}, None),
        ({}, {}, None),
    ],
)
async def test_a_requested_wait_has_its_length(talk, headers, fields, seconds):
    async def answer(_request):
        response = refused(429, "TooManyRequests", "slow down", **fields)
        response.headers.update(headers)
        return response

    async with talk(answer) as api:
        with pytest.raises(Unavailable) as caught:
            await api.request("GET", PODS)
    assert caught.value.retry_after == seconds


async def test_a_server_that_does_not_answer_is_unavailable_in_time(talk):
    async def answer(_request):
        await asyncio.Event().wait()

    async with talk(answer) as api:
        with pytest.raises(Unavailable, match="no answer in time"):
            await api.request("GET", PODS, timeout=0.2)


async def test_a_broken_connection_is_unavailable(talk):
    async def answer(request):
        request.transport.abort()
        return web.Response()

    async with talk(answer) as api:
        with pytest.raises(Unavailable, match="POST /api/v1/namespaces/team/pods"):
            await api.request("POST", PODS, body={})


@pytest.mark.parametrize("body", ['{"metadata": {"resourceVersion": "7"}, "items": [', "<html>Welcome</html>", ""])
async def test_a_truncated_answer_is_an_error(talk, body):
    async def answer(_request):
        return web.Response(text=body)

    async with talk(answer) as api:
        with pytest.raises(Unavailable, match="GET /api/v1/namespaces/team/pods: an answer that cannot be read"):
            await api.request("GET", PODS)
        assert await api.request("GET", f"{PODS}/worker/log", accept="*/*") == body.encode()


async def test_half_an_error_is_not_an_error(talk):
    """Its reason may be missing: a quota's would be read as a policy's."""

    async def answer(_request):
        return web.Response(
            status=403, text='{"kind": "Status", "message": "exceeded qu', content_type="application/json"
        )

    async with talk(answer) as api:
        with pytest.raises(Unavailable, match="an answer that cannot be read"):
            await api.request("POST", PODS, body={})


async def test_a_port_without_a_listener_is_unavailable(tmp_path, monkeypatch, unused_tcp_port):
    from tests.support.kubernetes.api_server import kubeconfig

    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, f"http://127.0.0.1:{unused_tcp_port}")))
    async with client.connected() as api:
        with pytest.raises(Unavailable):
            await api.request("GET", "/readyz")


# Watches.


def lines_of(*parts: bytes, then=None):
    async def answer(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        if then is not None:
            await then(request)
        return response

    return answer


async def read(api) -> list[bytes]:
    return [line async for line in api.stream(PODS, {"watch": "1"})]


async def test_lines_are_whole_however_they_arrive(talk):
    async with talk(lines_of(b'{"a"', b": 1}\n{", b'"b": 2}\n\n', b"x" * 200_000, b'\n{"c": 3}')) as api:
        assert await read(api) == [b'{"a": 1}', b'{"b": 2}', b"x" * 200_000, b'{"c": 3}']


async def test_a_line_without_end_is_cut_off(talk, monkeypatch):
    monkeypatch.setattr(client, "MAX_LINE_BYTES", 100_000)
    async with talk(lines_of(b"x" * 300_000)) as api:
        with pytest.raises(Unavailable, match="longer than 100000 bytes"):
            await read(api)


async def test_half_a_line_of_a_broken_watch_is_not_delivered(talk):
    async def breaks(request):
        request.transport.abort()

    told = []
    async with talk(lines_of(b'{"a": 1}\n{"b":', then=breaks)) as api:
        with pytest.raises(Unavailable):  # noqa: PT012 -- the break comes while lines are read
            async for line in api.stream(PODS, {}):
                told.append(line)  # noqa: PERF401 -- what came before the break counts
    assert told in ([b'{"a": 1}'], [])


async def test_a_watch_that_falls_silent_ends(talk, monkeypatch):
    monkeypatch.setattr(client, "SILENCE_SECONDS", 3.0)  # the first line may be late on a busy machine

    async def silence(_request):
        await asyncio.Event().wait()

    async with talk(lines_of(b'{"a": 1}\n', then=silence)) as api:
        lines = api.stream(PODS, {})
        assert await anext(lines) == b'{"a": 1}'
        with pytest.raises(Unavailable, match="watch /api/v1/namespaces/team/pods"):
            await anext(lines)


async def test_a_watch_that_is_refused_names_the_cause(talk):
    async def answer(_request):
        return refused(410, "Expired", "too old resource version")

    async with talk(answer) as api:
        with pytest.raises(Gone, match="too old"):
            await read(api)


# The fence.


async def test_behind_a_closed_fence_nothing_is_written_but_reading_continues(talk):
    verbs = []

    async def answer(request):
        verbs.append(request.method)
        return web.json_response({})

    async with talk(answer) as api:
        guarded = api.guarded(budget=None, fence=Fence("one"))
        await guarded.request("GET", PODS)
        for verb in ("POST", "PUT", "PATCH", "DELETE"):
            with pytest.raises(Fenced):
                await guarded.request(verb, PODS, body={})
    assert verbs == ["GET"]


async def test_a_fence_that_closes_while_a_connection_is_made_stops_the_write(talk):
    """The first check passes, then connecting takes its time; the body asks again before the first byte."""
    arrived, asked = [], []

    async def answer(request):
        arrived.append(await request.read())
        return web.json_response({})

    def clock() -> float:
        asked.append(True)
        return float(len(asked))

    fence = Fence("one", clock=clock)
    fence.until = 1.5
    async with talk(answer) as api:
        with pytest.raises(Fenced, match="one does not hold the lease"):
            await api.guarded(budget=None, fence=fence).request("POST", PODS, body={"kind": "Pod"})
        await api.request("GET", PODS)
    assert arrived == [b""], "only the GET may arrive"
    assert len(asked) == 2


# The budget.


async def test_writes_wait_for_the_budget_and_reads_do_not(talk):
    free, under_way = asyncio.Event(), []

    async def answer(request):
        if request.method == "POST":
            under_way.append(request)
            await free.wait()
        return web.json_response({})

    async with talk(answer) as api:
        guarded = api.guarded(budget=Budget(in_flight=2), fence=None)
        posts = [asyncio.create_task(guarded.request("POST", PODS, body={})) for _ in range(5)]
        await until(lambda: len(under_way) == 2)
        await guarded.request("GET", PODS)
        assert len(under_way) == 2
        free.set()
        await asyncio.gather(*posts)
    assert len(under_way) == 5


async def test_every_answer_is_counted(talk):
    async def answer(request):
        return web.json_response({}) if request.method == "GET" else refused(409, "Conflict", "no")

    counted = []
    async with talk(answer) as api:
        observed = api.guarded(budget=None, fence=None, observe=lambda *told: counted.append(told))
        await observed.request("GET", PODS)
        with pytest.raises(Conflict):
            await observed.request("PUT", PODS, body={})
    assert counted == [("GET", PODS, 200), ("PUT", PODS, 409)]
