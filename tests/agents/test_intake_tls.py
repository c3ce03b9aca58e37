"""The intake's certificate: judged by agents, read again when it changes, never spoiled by half a change."""

import asyncio
import contextlib
import json
import shutil
import ssl
import time

import pytest
import trustme
import uvloop
from tests.support.waiting import DEADLINE

from torchyard.agents.http import tls
from torchyard.agents.registry import AgentRegistry
from torchyard.agents.server import Intake, application

HOST = "torchyard-intake.torchyard.svc"


async def authenticate(token):
    return "pod-a" if token == "good" else None


def issue(authority, folder, *, key_of=None):
    """A certificate and its key, as a mounted Secret holds them: swapped by a link, both at once."""
    leaf = authority.issue_cert(HOST)
    made = folder / f"..{time.monotonic_ns()}"
    made.mkdir()
    (key_of or leaf).private_key_pem.write_to_path(made / "tls.key")
    for pem in leaf.cert_chain_pems:
        pem.write_to_path(made / "tls.crt", append=True)
    (folder / "..data_new").symlink_to(made.name)
    (folder / "..data_new").rename(folder / "..data")
    for name in ("tls.crt", "tls.key"):
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(f"..data/{name}")
    return leaf


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
def folder(tmp_path, authority):
    issue(authority, tmp_path)
    return tmp_path


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request):
    """The operator runs on uvloop, people's tests on asyncio."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop if request.param == "uvloop" else None)


@contextlib.asynccontextmanager
async def listening(folder):
    context = tls.server_context(folder)
    registry = AgentRegistry(time.time, interval=5.0, on_news=lambda _uid: None)
    following = asyncio.create_task(tls.follow(context, folder, every=0.02))
    async with Intake(application(registry, authenticate), tls=context) as intake:
        yield intake
    following.cancel()


def trusting(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def call(intake, context, **options):
    """The status that one sync is answered with."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", intake.port, ssl=context, server_hostname=HOST, **options
    )
    body = json.dumps({"protocol": 1, "instance": "i", "sequence": 1, "state": "ready"})
    head = (
        f"POST /v1/sync HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer good\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write((head + body).encode())
    answer = await asyncio.wait_for(reader.readline(), DEADLINE)
    writer.close()
    return int(answer.split()[1])


def test_agents_that_trust_its_authority_are_served_and_no_others_call(folder, authority, loop):
    async def check():
        async with listening(folder) as intake:
            assert await call(intake, trusting(authority)) == 200
            with pytest.raises(ssl.SSLCertVerificationError):
                await call(intake, trusting(trustme.CA()))

    with loop:
        loop.run(check())


def test_nothing_older_than_tls_1_3_is_spoken(folder, authority, loop):
    async def check():
        async with listening(folder) as intake:
            old = trusting(authority)
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await call(intake, old)

    with loop:
        loop.run(check())


def test_a_new_certificate_of_a_new_authority_is_used_without_a_restart(folder, authority, loop):
    async def check():
        async with listening(folder) as intake:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", intake.port, ssl=trusting(authority), server_hostname=HOST
            )
            successor = trustme.CA()
            issue(successor, folder)
            await accepted(intake, trusting(successor))
            with pytest.raises(ssl.SSLCertVerificationError):
                await call(intake, trusting(authority))
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 404"), "connections go on as they are"
            writer.close()

    with loop:
        loop.run(check())


async def accepted(intake, context):
    async with asyncio.timeout(DEADLINE):
        while True:
            with contextlib.suppress(ssl.SSLCertVerificationError):
                assert await call(intake, context) == 200
                return


def test_a_pair_that_does_not_fit_is_reported_and_the_one_before_it_stays(folder, authority, loop, caplog):
    async def check():
        async with listening(folder) as intake:
            issue(authority, folder, key_of=authority.issue_cert("other"))
            async with asyncio.timeout(DEADLINE):
                while "The current certificate remains in use." not in caplog.text:  # noqa: ASYNC110 - logged by another task
                    await asyncio.sleep(0.01)
            assert await call(intake, trusting(authority)) == 200
            successor = trustme.CA()
            issue(successor, folder)
            await accepted(intake, trusting(successor))

    with loop:
        loop.run(check())


@pytest.mark.parametrize("spoil", ["missing", "empty", "no key"])
def test_a_folder_without_a_usable_pair_is_named(folder, spoil):
    if spoil == "missing":
        shutil.rmtree(folder)
    elif spoil == "empty":
        (folder / "tls.crt").resolve().write_text("")
    else:
        (folder / "tls.key").resolve().unlink()
    with pytest.raises(ValueError, match=r"must hold a certificate chain `tls.crt` and its key `tls.key`"):
        tls.server_context(folder)
