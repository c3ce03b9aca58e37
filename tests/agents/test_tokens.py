"""Whose token it is: the API server decides, once; a pod speaks for itself alone."""

import asyncio
import base64
import json
from types import SimpleNamespace

import pytest

from torchyard.agents.auth.tokens import AUDIENCE, BOUNDS, Tokens, review_document, reviewed

POD, OTHER_POD, STRANGER = "pod-uid", "other-pod-uid", "stranger-uid"
MEMBER = SimpleNamespace(namespace="team", account="default")
JOBS = {POD: MEMBER, OTHER_POD: MEMBER}


def token(pod=POD, *, namespace="team", audience=AUDIENCE, expires=4600.0, signature=b"good", **claims):
    """As kubelets project them."""
    said = {
        "aud": [audience],
        "exp": expires,
        "kubernetes.io": {"namespace": namespace, "pod": {"name": "x", "uid": pod}, "serviceaccount": {"name": "y"}},
        "sub": f"system:serviceaccount:{namespace}:default",
    } | claims
    parts = (b'{"alg":"RS256"}', json.dumps(said).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


class ApiServer:
    """Answers TokenReviews as an API server does: it believes signatures, and what is signed."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = False
        self.answering = asyncio.Event()
        self.answering.set()

    async def review(self, text: str, audience: str) -> bytes:
        self.asked.append(text)
        await self.answering.wait()
        if self.away:
            raise ConnectionError("the API server is away")
        _, payload, signature = (base64.urlsafe_b64decode(part + "==") for part in text.split("."))
        if signature != b"good":
            return b'{"status": {"user": {}, "error": "invalid bearer token"}}'
        claims = json.loads(payload)
        audiences = [one for one in claims["aud"] if one == audience]
        pod = claims["kubernetes.io"]["pod"]
        extra = {"authentication.kubernetes.io/pod-uid": [pod["uid"]]} if pod else {}
        user = {"username": claims["sub"], "uid": "u", "groups": ["system:serviceaccounts"], "extra": extra}
        return json.dumps({"status": {"authenticated": bool(audiences), "audiences": audiences, "user": user}}).encode()


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.jobs = dict(JOBS)
        self.server = ApiServer()
        self.tokens = Tokens(self.server.review, self.jobs.get, clock=lambda: self.now)

    async def ask(self, text: str) -> str | None:
        return await self.tokens.authenticate(text)


@pytest.fixture
async def world():
    return World()


async def test_a_token_speaks_for_the_pod_it_is_bound_to(world):
    assert await world.ask(token(POD)) == POD
    assert await world.ask(token(OTHER_POD)) == OTHER_POD


@pytest.mark.parametrize(
    "refused",
    [
        token(signature=b"forged"),
        token(audience="https://kubernetes.default.svc"),
        token(expires=999.0),
        token(STRANGER),
        token(namespace="elsewhere"),
        token(**{"kubernetes.io": {"namespace": "team"}}),
        token(sub="system:node:worker-1"),
        "not.a.jwt",
        "e30.e30.e30",
        "plain",
        "",
        "\ud800",
        "a.!!!.c",
    ],
)
async def test_no_other_token_speaks_for_any_pod(world, refused):
    assert await world.ask(refused) is None


async def test_claims_of_a_token_alone_prove_no_identity(world):
    """The API server says whose token it is; a token that claims our pod and is another's speaks for the other."""

    async def review(_text, audience):
        extra = {"authentication.kubernetes.io/pod-uid": [OTHER_POD]}
        user = {"username": "system:serviceaccount:team:default", "extra": extra}
        return json.dumps({"status": {"authenticated": True, "audiences": [audience], "user": user}}).encode()

    tokens = Tokens(review, world.jobs.get, clock=lambda: world.now)
    assert await tokens.authenticate(token(POD)) == OTHER_POD


async def test_the_api_server_is_asked_once_in_ten_minutes(world):
    for _ in range(100):
        assert await world.ask(token()) == POD
        world.now += 5.9
    assert len(world.server.asked) == 1
    world.now += 20
    assert await world.ask(token()) == POD
    assert len(world.server.asked) == 2


async def test_a_token_is_good_until_it_expires_and_no_longer(world):
    text = token(expires=1300.0)
    assert await world.ask(text) == POD
    world.now = 1299.0
    assert await world.ask(text) == POD
    world.now = 1300.0
    assert await world.ask(text) is None
    assert len(world.server.asked) == 1


async def test_a_thousand_requests_with_one_token_are_one_review(world):
    world.server.answering.clear()
    asked = [asyncio.create_task(world.ask(token())) for _ in range(1000)]
    await asyncio.sleep(0)
    asked[0].cancel()
    world.server.answering.set()
    assert set(await asyncio.gather(*asked[1:])) == {POD}, "one that gives up takes nothing from the others"
    assert len(world.server.asked) == 1


async def test_a_refused_token_is_refused_for_a_while_without_asking_again(world):
    forged = token(signature=b"forged")
    for _ in range(10):
        assert await world.ask(forged) is None
    assert len(world.server.asked) == 1
    world.now += 11
    assert await world.ask(forged) is None
    assert len(world.server.asked) == 2


async def test_a_stranger_costs_no_review(world):
    for text in (token(STRANGER), token(audience="other"), token(expires=1.0), "x.y.z"):
        assert await world.ask(text) is None
    assert world.server.asked == []


async def test_a_pod_that_is_gone_is_refused_at_once(world):
    assert await world.ask(token()) == POD
    del world.jobs[POD]
    assert await world.ask(token()) is None


async def test_while_the_api_server_is_away_known_tokens_continue_and_others_must_wait(world):
    assert await world.ask(token()) == POD
    world.server.away = True
    world.now += 601
    for _ in range(20):
        assert await world.ask(token()) == POD
        world.now += 0.1
    assert len(world.server.asked) == 2, "nor is it asked with every request"
    with pytest.raises(ConnectionError):
        await world.ask(token(OTHER_POD))
    world.now = 4601
    assert await world.ask(token()) is None, "but none outlives its own time"


async def test_a_token_that_was_revoked_is_refused_once_it_is_reviewed_again(world):
    assert await world.ask(token()) == POD
    world.now += 601
    world.tokens._review = ApiServerThatRefuses()
    assert await world.ask(token()) is None


class ApiServerThatRefuses:
    async def __call__(self, _text, _audience):
        return b'{"status": {"authenticated": false, "error": "pod is gone"}}'


async def test_floods_of_forged_tokens_push_no_good_one_out(world):
    assert await world.ask(token()) == POD
    for number in range(BOUNDS.bad + 100):
        assert await world.ask(token(signature=b"forged%d" % number)) is None
    before = len(world.server.asked)
    assert await world.ask(token()) == POD
    assert len(world.server.asked) == before
    assert len(world.tokens._verdicts._bad) == BOUNDS.bad


@pytest.mark.parametrize(
    "status",
    [
        {"authenticated": True, "audiences": []},
        {"authenticated": True},
        {"authenticated": True, "audiences": ["other"]},
        {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": "system:serviceaccount:team:x"}},
        {"authenticated": False, "audiences": [AUDIENCE]},
        {"authenticated": True, "audiences": [AUDIENCE], "error": "half a mind"},
        {},
    ],
)
def test_an_answer_that_does_not_vouch_for_a_pod_is_a_no(status):
    assert reviewed(json.dumps({"status": status}).encode(), AUDIENCE) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"status": 1}', b"<html>"])
def test_an_answer_that_is_not_a_review_is_an_error(body):
    with pytest.raises(ValueError, match="TokenReview"):
        reviewed(body, AUDIENCE)


def test_the_question_names_our_audience():
    document = review_document("text", AUDIENCE)
    assert (document["kind"], document["spec"]) == ("TokenReview", {"token": "text", "audiences": ["torchyard.dev"]})
