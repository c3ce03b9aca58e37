"""Whose token it is, by the keys that the API server publishes; in every doubt the API server is asked."""

import asyncio
import json
import time
from types import SimpleNamespace

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from torchyard.agents.auth.signatures import AGAIN_SECONDS, ISSUER_PATH, KEYS_PATH, KEYS_SECONDS, Signatures
from torchyard.agents.auth.tokens import AUDIENCE, Identity, Tokens
from torchyard.reconcile.ports import Unavailable

ISSUER = "https://kubernetes.default.svc.cluster.local"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
POD = Identity("team", "pod-uid", "default")


def token(key=RSA, *, kid="one", algorithm="RS256", **claims):
    """As kubelets project them."""
    said = {
        "aud": [AUDIENCE],
        "exp": time.time() + 3600,
        "iss": ISSUER,
        "kubernetes.io": {"namespace": "team", "pod": {"name": "x", "uid": "pod-uid"}},
        "sub": "system:serviceaccount:team:default",
    } | claims
    return jwt.encode(said, key, algorithm=algorithm, headers={"kid": kid})


def published(**keys):
    """The two documents, with these public keys by their ids."""
    documents = [{"use": "sig", "kid": kid} | public(key) for kid, key in keys.items()]
    return {ISSUER_PATH: json.dumps({"issuer": ISSUER}).encode(), KEYS_PATH: json.dumps({"keys": documents}).encode()}


def public(key):
    form = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    document = form.to_jwk(key.public_key(), as_dict=True)
    document.pop("key_ops", None)  # API servers say "use"
    return document


class ApiServer:
    """Publishes its keys."""

    def __init__(self) -> None:
        self.now, self.pages, self.asked, self.away = 0.0, published(one=RSA, curve=CURVE), 0, False
        self.signatures = Signatures(self._get, clock=lambda: self.now)

    async def _get(self, path):
        self.asked += 1
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("away")
        if path not in self.pages:
            raise ValueError("it does not publish them")
        return self.pages[path]

    async def vouch(self, text):
        return await self.signatures.vouch(text, AUDIENCE)


@pytest.fixture
async def server():
    return ApiServer()


async def test_a_signature_confirms_the_pod_of_a_token(server):
    assert await server.vouch(token()) == POD
    assert await server.vouch(token(CURVE, kid="curve", algorithm="ES256")) == POD
    assert server.asked == 2, "both documents once"


NESTED = "W1tb" * 1500  # base64 of 4,500 brackets


@pytest.mark.parametrize(
    "doubtful",
    [
        token(OTHER),
        token(OTHER, kid="unknown"),
        token(aud=["https://kubernetes.default.svc"]),
        token(iss="https://elsewhere"),
        token(sub="system:node:worker-1"),
        token(sub="system:serviceaccount:elsewhere:default"),
        token(**{"kubernetes.io": {"namespace": "team"}}),
        token("", algorithm="none"),
        token("0" * 32, algorithm="HS256"),
        token().rpartition(".")[0] + ".",
        token().rpartition(".")[0] + ".\ud800",
        token().replace(token().split(".")[0], NESTED),
        token()[:-8] + "AAAAAAAA",
        "",
        "a.b.c",
    ],
)
async def test_it_vouches_for_nothing_doubtful(server, doubtful):
    assert await server.vouch(doubtful) is None


async def test_a_public_key_is_not_a_secret_to_sign_with(server):
    """The classic confusion of algorithms: HMAC with the text of the published key."""
    key = json.loads(server.pages[KEYS_PATH])["keys"][0]
    assert await server.vouch(token(key["n"], algorithm="HS256")) is None


async def test_a_thousand_tokens_are_one_look_at_the_keys(server):
    found = await asyncio.gather(*(server.vouch(token()) for _ in range(1000)))
    assert set(found) == {POD}
    assert server.asked == 2


async def test_new_keys_are_found_and_old_ones_forgotten(server):
    assert await server.vouch(token()) == POD
    server.pages = published(two=OTHER)
    assert await server.vouch(token(OTHER, kid="two")) is None, "it was asked a moment ago"
    server.now += AGAIN_SECONDS
    assert await server.vouch(token(OTHER, kid="two")) == POD
    assert await server.vouch(token()) is None
    server.pages = published(one=RSA)
    server.now += KEYS_SECONDS
    assert await server.vouch(token(OTHER, kid="two")) is None


async def test_unknown_keys_are_no_way_to_busy_the_api_server(server):
    for number in range(100):
        assert await server.vouch(token(OTHER, kid=f"made-up-{number}")) is None
    assert server.asked == 2


async def test_known_keys_are_good_while_the_api_server_is_away(server):
    assert await server.vouch(token()) == POD
    server.away = True
    server.now += KEYS_SECONDS
    assert await server.vouch(token()) == POD


@pytest.mark.parametrize("pages", [{}, {ISSUER_PATH: b"{}", KEYS_PATH: b"[]"}, {ISSUER_PATH: b'{"issuer": "x"}'}])
async def test_without_keys_the_api_server_is_asked_about_the_token(server, pages):
    server.pages = pages
    assert await server.vouch(token()) is None
    server.now += AGAIN_SECONDS
    assert await server.vouch(token()) is None


class Judge:
    """Tokens, judged by signatures first, with an API server that counts its reviews and refuses every one."""

    def __init__(self, server) -> None:
        self.now, self.reviews = time.time(), 0
        self.jobs = {"pod-uid": SimpleNamespace(namespace="team", account="default")}
        self.tokens = Tokens(self._review, self.jobs.get, vouch=server.signatures.vouch, clock=lambda: self.now)

    async def _review(self, _text, _audience):
        self.reviews += 1
        return b'{"status": {}}'


async def test_a_signed_token_needs_no_review_and_expires_on_time(server):
    judge = Judge(server)
    good = token(exp=judge.now + 700)
    for _ in range(3):
        assert await judge.tokens.authenticate(good) == "pod-uid"
        judge.now += 240
    assert await judge.tokens.authenticate(good) is None
    assert judge.reviews == 0


async def test_a_vouched_token_of_a_pod_that_is_gone_or_of_another_namespace_is_refused(server):
    judge = Judge(server)
    good = token()
    assert await judge.tokens.authenticate(good) == "pod-uid"
    judge.jobs["pod-uid"] = SimpleNamespace(namespace="elsewhere", account="default")
    assert await judge.tokens.authenticate(good) is None
    del judge.jobs["pod-uid"]
    assert await judge.tokens.authenticate(good) is None


async def test_what_no_signature_vouches_for_is_reviewed(server):
    judge = Judge(server)
    assert await judge.tokens.authenticate(token(OTHER)) is None
    assert judge.reviews == 1
