"""Certificates of the intake that renew themselves: agents accept each of them, and no reader sees half a change."""

import asyncio
import datetime as dt
import os
import signal
import ssl
import subprocess
import sys
import time

import pytest
import trustme
from cryptography import x509
from tests.support.waiting import DEADLINE

from torchyard.agents.http.tls import follow, server_context
from torchyard.app.certificate import is_due, renew

HOST = "torchyard-intake.torchyard-system.svc"
LIFE = dt.timedelta(days=90)


@pytest.fixture
def authority(tmp_path):
    folder = tmp_path / "ca"
    folder.mkdir()
    replace(folder)
    return folder


def replace(folder):
    made = trustme.CA(key_type=trustme.KeyType.ECDSA)
    (folder / "tls.crt").write_bytes(made.cert_pem.bytes())
    (folder / "tls.key").write_bytes(made.private_key_pem.bytes())


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "tls"
    folder.mkdir()
    return folder


def leaf(out):
    return x509.load_pem_x509_certificate((out / "tls.crt").read_bytes())


@pytest.mark.parametrize(("name", "accepted"), [(HOST, True), (f"{HOST}.cluster.local", True), ("elsewhere", False)])
def test_agents_as_strict_as_python_gets_accept_it_for_the_intakes_name_alone(authority, out, name, accepted):
    renew(authority, out, HOST, LIFE)
    client = ssl.create_default_context(cafile=str(out / "ca.crt"))
    client.minimum_version = ssl.TLSVersion.TLSv1_3
    client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        server_context(out).wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=name),
    ]

    def shake_hands():
        while sides:
            for side in list(sides):
                try:
                    side.do_handshake()
                    sides.remove(side)
                except ssl.SSLWantReadError:
                    pass

    if accepted:
        shake_hands()
    else:
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            shake_hands()


def test_it_is_replaced_after_two_thirds_of_its_life_and_when_the_authority_changes(authority, out):
    now = dt.datetime.now(dt.UTC)
    assert is_due(authority, out, now)
    renew(authority, out, HOST, LIFE)
    first = leaf(out)
    assert first.not_valid_after_utc - now <= LIFE + dt.timedelta(minutes=1)
    assert not is_due(authority, out, now + dt.timedelta(days=59))
    assert is_due(authority, out, now + dt.timedelta(days=61))
    renew(authority, out, HOST, LIFE)
    assert leaf(out) != first
    assert len([each for each in out.iterdir() if each.is_dir() and not each.is_symlink()]) == 1
    replace(authority)
    assert is_due(authority, out, now)


def test_a_certificate_never_outlives_its_authority(authority, out):
    ends = renew(authority, out, HOST, dt.timedelta(days=500_000))
    assert ends == x509.load_pem_x509_certificate((authority / "tls.crt").read_bytes()).not_valid_after_utc


async def test_a_running_intake_uses_the_new_one(authority, out, caplog):
    renew(authority, out, HOST, LIFE)
    caplog.set_level("INFO")
    following = asyncio.create_task(follow(server_context(out), out, every=0.01))
    await asyncio.sleep(0)
    renew(authority, out, HOST, LIFE)
    async with asyncio.timeout(DEADLINE):
        while "reloaded the intake's certificate" not in caplog.text:  # noqa: ASYNC110 -- of a thread's work
            await asyncio.sleep(0.01)
    following.cancel()


def test_the_process_signs_at_once_and_ends_when_it_is_asked_to(authority, out):
    argv = ["-m", "torchyard.app.certificate", "--ca", authority, "--out", out, "--host", HOST, "--days", "90"]
    with subprocess.Popen([sys.executable, *map(str, argv)], stderr=subprocess.PIPE, text=True) as process:
        assert "signed a certificate for" in process.stderr.readline()
        assert leaf(out).not_valid_after_utc.timestamp() > time.time() + 89 * 86400
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(DEADLINE) == 0
