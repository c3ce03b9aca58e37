"""Notifications of the operator reach one webhook: signed, in order, at least once, and never in the way."""

import asyncio
import base64
import hashlib
import hmac
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace
from tests.kubernetes.test_job_metrics import TRAINING, job

from torchyard.api.status import Attempt, Cause, State
from torchyard.api.values import Time
from torchyard.app import notifier as module
from torchyard.app.notifier import MAX_AGE_SECONDS, Notifier, Progress, Wishes, webhook
from torchyard.reconcile.notifications import DEFAULT_STATES

KEY = "0123456789abcdef0123456789abcdef"
NOW = 10_000.0


def failed(at=NOW):
    return replace(TRAINING, state=State.FAILED, completion_time=Time.of(at))


class Receiver:
    """A webhook that answers with the given statuses, then with 200."""

    def __init__(self, folder, statuses=()):
        self.folder, self.statuses, self.requests, self.expected = folder, list(statuses), [], asyncio.Queue()

    async def handle(self, request):
        body = await request.read()
        self.requests.append((request.headers.copy(), body))
        status = self.statuses.pop(0) if self.statuses else 200
        self.expected.put_nowait(json.loads(body)["subject"])
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    def notifier(self, since=None, **wishes):
        chosen = Wishes(folder=self.folder, **{"states": DEFAULT_STATES, **wishes})
        return Notifier(chosen, since, lambda: NOW, pause=0.001)


@asynccontextmanager
async def receiving(folder, *statuses, key=KEY):
    receiver = Receiver(folder, statuses)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    (folder / "url").write_text(f"http://127.0.0.1:{runner.addresses[0][1]}/hook\n")
    (folder / "key").write_text(key)
    try:
        yield receiver
    finally:
        await runner.cleanup()


@asynccontextmanager
async def sending(notifier):
    task = asyncio.create_task(notifier.run())
    try:
        yield notifier
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled(notifier, done):
    async with asyncio.timeout(60):
        while notifier.sent + notifier.dropped < done:  # noqa: ASYNC110 -- a page reads its figures likewise
            await asyncio.sleep(0.001)


async def test_a_transition_arrives_as_a_signed_cloud_event(tmp_path):
    async with receiving(tmp_path) as receiver, sending(receiver.notifier()) as notifier:
        notifier.written(job("a"), failed())
        await settled(notifier, 1)
    ((headers, body),) = receiver.requests
    assert headers["Content-Type"] == "application/cloudevents+json"
    event = json.loads(body)
    assert (event["specversion"], event["subject"], event["data"]["state"]) == ("1.0", "team/a", "Failed")
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(KEY.encode(), signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert event["id"] == headers["webhook-id"]


async def test_only_the_wished_states_are_sent_and_each_transition_once(tmp_path):
    async with receiving(tmp_path) as receiver, sending(receiver.notifier(states=(State.FAILED,))) as notifier:
        notifier.written(job("a"), replace(TRAINING, state=State.SUCCEEDED, completion_time=Time.of(NOW)))
        for _ in range(3):
            notifier.written(job("b"), failed())
        notifier.written(job("c"), failed())
        await settled(notifier, 1)
        notifier.written(job("d"), failed())
        await receiver.expected.get()
    assert json.loads(receiver.requests[0][1])["subject"] == "team/b"


@pytest.mark.parametrize("answers", [(500, 503), (429,), (408,)])
async def test_a_receiver_in_trouble_gets_it_again_with_the_same_id(tmp_path, answers):
    async with receiving(tmp_path, *answers) as receiver, sending(receiver.notifier()) as notifier:
        notifier.written(job("a"), failed())
        await settled(notifier, 1)
        assert (notifier.sent, notifier.dropped) == (1, 0)
    ids = [headers["webhook-id"] for headers, _ in receiver.requests]
    assert (len(ids), len(set(ids))) == (len(answers) + 1, 1)


@pytest.mark.parametrize("answer", [400, 401, 404, 302])
async def test_an_answer_that_no_repetition_changes_drops_it_and_the_next_one_arrives(tmp_path, answer):
    async with receiving(tmp_path, answer) as receiver, sending(receiver.notifier()) as notifier:
        notifier.written(job("a"), failed())
        notifier.written(replace(job("b"), metadata=replace(job("b").metadata, uid="b")), failed())
        await settled(notifier, 2)
        assert (notifier.sent, notifier.dropped, len(receiver.requests)) == (1, 1, 2)


async def test_one_that_the_receiver_cannot_take_does_not_block_the_others(tmp_path):
    async with receiving(tmp_path, *([500] * module.TRIES)) as receiver, sending(receiver.notifier()) as notifier:
        notifier.written(job("a"), failed())
        notifier.written(replace(job("b"), metadata=replace(job("b").metadata, uid="b")), failed())
        await settled(notifier, 2)
    subjects = [json.loads(body)["subject"] for _, body in receiver.requests]
    assert subjects == ["team/a"] * module.TRIES + ["team/b", "team/a"]


async def test_a_key_that_is_replaced_signs_the_next_try(tmp_path):
    async with receiving(tmp_path, 500) as receiver, sending(receiver.notifier()) as notifier:
        notifier.written(job("a"), failed())
        await receiver.expected.get()
        (tmp_path / "key").write_text("whsec_" + base64.b64encode(b"n" * 32).decode())
        await settled(notifier, 1)
    headers, body = receiver.requests[-1]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    assert headers["webhook-signature"] == "v1," + base64.b64encode(hmac.digest(b"n" * 32, signed, "sha256")).decode()


async def test_an_unusable_certificate_delays_notifications_and_ends_nothing(tmp_path):
    async with receiving(tmp_path) as receiver:
        authority = tmp_path / "ca.crt"
        authority.write_text("no certificate")
        notifier = receiver.notifier()
        notifier.written(job("a"), failed())
        async with aiohttp.ClientSession() as session:
            assert await notifier._try(session, notifier._waiting[0]) > 0
            authority.unlink()
            assert await notifier._try(session, notifier._waiting[0]) == 0
    assert (notifier.sent, len(receiver.requests)) == (1, 1)


async def test_a_new_leader_sends_what_the_former_one_did_not(tmp_path):
    attempt = Attempt(round=4, end_time=Time.of(NOW - 30), cause=Cause(exception="lost"))
    fails = job("a", replace(TRAINING, attempts=[replace(attempt, round=3, end_time=Time.of(NOW - 300)), attempt]))
    ended = job("b", failed(NOW - 20))
    former = Notifier(Wishes(folder=tmp_path, states=DEFAULT_STATES), NOW - 100, lambda: NOW)
    former.written(job("b"), ended.status)
    before, progress = Progress(), Progress()
    before.notifier = former
    progress.read(before.published())
    mark = progress.former
    assert progress.published() == before.published(), "a candidate keeps what it has read"
    async with receiving(tmp_path) as receiver, sending(receiver.notifier(since=mark)) as notifier:
        notifier.catch_up([fails, ended])
        await settled(notifier, 2)
        assert notifier.sent_until >= NOW - module.MARGIN_SECONDS
    assert [json.loads(body)["subject"] for _, body in receiver.requests] == ["team/a", "team/b"]


async def test_the_first_leader_and_a_long_absence_send_nothing_old(tmp_path):
    old = [job("a", failed(NOW - MAX_AGE_SECONDS - 10))]
    for text in ("", "1", "soon", "nan"):
        progress = Progress()
        progress.read(text)
        since = progress.former
        notifier = Notifier(Wishes(folder=tmp_path, states=DEFAULT_STATES), since, lambda: NOW)
        notifier.catch_up(old)
        assert notifier.sent_until == NOW - module.MARGIN_SECONDS or since is None or notifier.sent_until <= NOW
        assert not notifier._waiting


def test_the_queue_is_bounded_and_counts_what_it_drops(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    notifier = Notifier(Wishes(folder=tmp_path, states=DEFAULT_STATES), None, lambda: NOW)
    for index in range(10):
        entry = job(f"j{index}")
        notifier.written(replace(entry, metadata=replace(entry.metadata, uid=str(index))), failed())
    assert (notifier.dropped, len(notifier._waiting)) == (7, 3)
    assert notifier.sent_until <= NOW


@pytest.mark.parametrize(
    ("url", "key", "word"),
    [
        ("ftp://x/y", KEY, "http or https"),
        ("https://user:secret@x/y", KEY, "without a user"),
        ("https://x/y", "short", "5 bytes are too few"),
        ("https://x/y", "whsec_%%%", "base64"),
        (None, KEY, "cannot be read"),
    ],
)
def test_an_unusable_secret_is_refused_without_quoting_it(tmp_path, url, key, word):
    (tmp_path / "key").write_text(key)
    if url is not None:
        (tmp_path / "url").write_text(url)
    with pytest.raises(ValueError, match=word) as caught:
        webhook(tmp_path)
    assert "secret@" not in str(caught.value)
