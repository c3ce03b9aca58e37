"""Input of attackers, mutated: nothing raises what its caller does not expect, and nothing invalid is believed.

Each target runs for a moment in every test run, and for `MINUTES` minutes in all with `make fuzz MINUTES=n`.
"""

import asyncio
import contextlib
import functools
import json
import os
import time
from pathlib import Path

import jwt
import pytest
import torch
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchyard.agents.auth.signatures import ISSUER_PATH, KEYS_PATH, Signatures
from torchyard.agents.auth.tokens import AUDIENCE
from torchyard.agents.auth.tokens import read as read_claims
from torchyard.agents.http.admission import Slot
from torchyard.agents.http.connection import Connection, Response
from torchyard.agents.registry import MAX_BODY_BYTES, AgentRegistry, decode
from torchyard.api.resource import read_job
from torchyard.api.validation.validate import validate_bytes
from torchyard_trainers.core.checkpoints import commits
from torchyard_trainers.core.checkpoints.checkpoint import Checkpoints
from torchyard_trainers.core.exits import CheckpointError
from torchyard_trainers.core.world import World

ACCEPTED = yaml.safe_load((Path(__file__).parents[1] / "api/objects/accepted.yaml").read_text())
MINUTES = float(os.environ.get("TORCHYARD_FUZZ_MINUTES", "0"))
EXAMPLES = 40
TARGETS = 6


def fuzzed(*strategies):
    """Run a test with a few examples, or with as many as fit into this target's share of the minutes."""

    def decorate(test):
        quiet = settings(max_examples=EXAMPLES if not MINUTES else 500, suppress_health_check=list(HealthCheck))
        once = quiet(given(*strategies)(test))

        @functools.wraps(once)
        def run(**fixtures):
            deadline = time.monotonic() + MINUTES * 60 / TARGETS
            once(**fixtures)
            while time.monotonic() < deadline:
                once(**fixtures)

        return run

    return decorate


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=40)
    | st.sampled_from(
        ["", "../..", "1e999", "9" * 400, "\x1b[2J", "\ud800", "{{", "${X}", "-0", "1h1h", "0x", "\u202e"]
    )
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner))


@st.composite
def mutated(draw, documents):
    """One of the documents with up to four values replaced, removed or added somewhere in it."""
    document = json.loads(json.dumps(draw(st.sampled_from(documents))))
    for _ in range(draw(st.integers(0, 4))):
        place = document
        while isinstance(place, dict | list) and place:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or draw(st.booleans()):
                match draw(st.sampled_from(["replace", "remove", "add"])):
                    case "replace":
                        place[key] = draw(JSON)
                    case "remove":
                        del place[key]
                    case "add" if isinstance(place, dict):
                        place[draw(st.text(max_size=12))] = draw(JSON)
                    case _:
                        place.append(draw(JSON))
                break
            place = place[key]
    return document


@st.composite
def damaged(draw, contents):
    """Some of these bytes with parts cut out, doubled, flipped or replaced."""
    data = bytearray(draw(st.sampled_from(contents)))
    for _ in range(draw(st.integers(0, 6))):
        at, length = draw(st.integers(0, len(data))), draw(st.integers(0, 16))
        match draw(st.sampled_from(["cut", "double", "flip", "insert"])):
            case "cut":
                del data[at : at + length]
            case "double":
                data[at:at] = data[at : at + length]
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case _:
                data[at:at] = draw(st.binary(max_size=16) | st.sampled_from([b"\r\n", b"\x00", b"[" * 999, b"&a [*a]"]))
    return bytes(data)


JOBS = [
    {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "x"}, "spec": each["spec"]}
    for each in ACCEPTED
]


@fuzzed(mutated(JOBS))
def test_objects(job):
    with contextlib.suppress(ValueError):
        read_job(job)
    for problem in validate_bytes(json.dumps(job).encode(), "job.yaml").problems:
        assert problem.what


@fuzzed(damaged([yaml.safe_dump(each, allow_unicode=True).encode() for each in JOBS]))
def test_yaml_text(text):
    found = validate_bytes(text, "job.yaml")
    assert found.jobs or found.problems or not text.strip()


SYNC = {
    "protocol": 1,
    "instance": "i",
    "sequence": 1,
    "state": "running",
    "time": 1.5,
    "round": 2,
    "address": "10.0.0.1",
    "masterPort": 29400,
    "procs": 2,
    "exit": {"code": 1, "failures": [{"rank": 0, "message": "x", "exitCode": 1}]},
    "reports": [{"schema": 1, "rank": 0, "step": 3, "totalSteps": 9, "metrics": {"loss": 1.0}, "phase": "step"}],
    "gpus": [{"index": 0, "uuid": "GPU-1", "memoryUsed": 1}],
    "notices": [{"reason": "X", "message": "y"}],
}


@fuzzed(mutated([SYNC]))
def test_intake_bodies(body):
    registry = AgentRegistry(time.time, interval=5.0, on_news=lambda _uid: None)
    try:
        request = decode(json.dumps(body).encode())
    except ValueError:
        return
    registry.record("pod", request)
    assert registry.of(["pod"])["pod"].state == request.state
    json.dumps(registry.answer("pod"), default=str)


class Wire:
    """The other side of a connection, in memory."""

    def __init__(self):
        self.written, self.closing = b"", False

    def get_extra_info(self, _name):
        return ("192.0.2.1", 1)

    def write(self, data):
        self.written += bytes(data)

    def close(self):
        self.closing = True

    abort = close

    def is_closing(self):
        return self.closing

    def pause_reading(self):
        pass

    resume_reading = pause_reading


class Owner:
    """The keeper of one connection."""

    def __init__(self):
        self.buffer = memoryview(bytearray(64 * 1024))

    def opened(self, connection):
        pass

    closed = opened

    def refused(self, status):
        assert 400 <= status < 500


REQUESTS = [
    b"POST /v1/sync HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Length: 2\r\n\r\n{}" * 2,
    b"POST /v1/sync HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


@fuzzed(damaged(REQUESTS), st.lists(st.integers(1, 200), min_size=1, max_size=6))
def test_http_bytes(data, sizes):
    async def talk():
        async def handle(request):
            assert len(request.body) <= MAX_BODY_BYTES
            return Response(200, {})

        wire, owner = Wire(), Owner()
        connection = Connection(handle, owner, Slot("192.0.2.1", wire.abort, lambda: False), max_body=MAX_BODY_BYTES)
        connection.connection_made(wire)
        rest = data
        for size in [*sizes, len(data)]:
            part, rest = rest[:size], rest[size:]
            owner.buffer[: len(part)] = part
            if part and not wire.closing:
                connection.buffer_updated(len(part))
                await asyncio.sleep(0)
        for _ in range(8):
            await asyncio.sleep(0)
        connection.connection_lost(None)
        return wire.written

    answers = asyncio.run(talk())
    assert not answers or answers.startswith(b"HTTP/1.1 ")


KEY = ec.generate_private_key(ec.SECP256R1())
CLAIMS = {
    "aud": [AUDIENCE],
    "exp": 2**40,
    "iss": "https://issuer",
    "kubernetes.io": {"namespace": "team", "pod": {"name": "x", "uid": "pod-uid"}},
    "sub": "system:serviceaccount:team:default",
}
TOKEN = jwt.encode(CLAIMS, KEY, algorithm="ES256", headers={"kid": "one"})


async def published(path):
    key = jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True) | {"use": "sig", "kid": "one"}
    key.pop("key_ops", None)
    return json.dumps({ISSUER_PATH: {"issuer": "https://issuer"}, KEYS_PATH: {"keys": [key]}}[path]).encode()


@fuzzed(damaged([TOKEN.encode(), jwt.encode(CLAIMS, None, algorithm="none", headers={"kid": "one"}).encode()]))
def test_tokens(data):
    token = data.decode("latin-1")
    found = asyncio.run(Signatures(published).vouch(token, AUDIENCE))
    read_claims(token)
    # Unused bits of base64 may differ; what is vouched for is never anything else than what was signed.
    assert found is None or (found.namespace, found.pod_uid) == ("team", "pod-uid")
    if token == TOKEN:
        assert found is not None


WORLD = World(0, 1, 0, torch.device("cpu"), grouped=False)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    state = {"weights": torch.arange(12.0).reshape(4, 3), "rate": 0.5, "betas": (0.9, 0.999)}
    Checkpoints(root, WORLD, round_number=1, job="job").save(7, state, {"step": 7, "metrics": {}}, keep=1)
    folder = commits.step_folder(root, 7)
    names = ["COMMIT", "state.json", "dcp/index.json", "dcp/__0_0.bin"]
    return folder, {name: (folder / name).read_bytes() for name in names}


@fuzzed(st.data())
def test_checkpoints(checkpoint, data):
    """Only COMMIT is damaged, or a file that COMMIT then vouches for, as an attacker would write it."""
    folder, files = checkpoint
    name = data.draw(st.sampled_from(sorted(files)))
    as_json = data.draw(st.booleans()) and not name.endswith(".bin")
    if as_json:
        changed = json.dumps(data.draw(mutated([json.loads(files[name])]))).encode()
    else:
        changed = data.draw(damaged([files[name]]))
    for each, content in (files | {name: changed}).items():
        (folder / each).write_bytes(content)
    if name != "COMMIT":
        sealed = {each: commits.digest(folder / each) for each in files if each != "COMMIT"}
        commits.commit(folder, sealed, {"step": 7, "round": 1, "time": 0.0, "saveSeconds": 0.0})
    state = {"weights": torch.zeros(4, 3), "rate": 0.0, "betas": (0.0, 0.0)}
    reader = Checkpoints(folder.parent, WORLD, round_number=2, job="job")
    with contextlib.suppress(CheckpointError):
        reader.restore(lambda shards, where: shards.load(state, where))
    assert state["weights"].shape == (4, 3)
