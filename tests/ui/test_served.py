"""The page in a cluster: each user sees what the API server lets this user read, and nothing is ever changed."""

import asyncio
import contextlib
import json

import aiohttp
import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import refused, serving
from tests.support.waiting import DEADLINE
from tests.ui.conftest import needs_libraries, one_loop

from torchyard.kubernetes.client.bearer import REVIEW, ApiServer
from torchyard.ui.served.__main__ import application
from torchyard.ui.served.users import MAX_USERS, REVIEW_SECONDS, Users

pytestmark = [needs_libraries, one_loop]
HOST = "torchyard.example"
JOBS = "/apis/torchyard.dev/v1alpha1/namespaces/team/trainingjobs"
JOB = {"metadata": {"name": "cvrp", "namespace": "team", "uid": "u1"}, "spec": {"command": ["true"]},
       "status": {"state": "Running", "curves": {"loss": {"width": 1, "buckets": []}}}}  # fmt: skip


class Cluster:
    """An API server: user ada may read team, bob nothing, and the token of eve has expired; it keeps each request."""

    def __init__(self):
        self.asked, self.expired = [], {"eve"}

    async def answer(self, request):
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.asked.append((token, request.method, request.path))
        if token in self.expired:
            return refused(401, "Unauthorized", "Unauthorized")
        if request.path == REVIEW:
            return web.json_response({"status": {"userInfo": {"username": token}}}, status=201)
        if token != "ada" or "/namespaces/team/" not in request.path or request.path.endswith("/events"):
            return refused(403, "Forbidden", f"User {token!r} cannot list this")
        if request.path == JOBS:
            return web.json_response({"metadata": {}, "items": [JOB]})
        if request.path == f"{JOBS}/cvrp":
            return web.json_response(JOB)
        return web.json_response({"metadata": {}, "items": []})


class Served:
    def __init__(self, cluster, users, url):
        self.cluster, self.users, self.url = cluster, users, url

    async def ask(self, path, token="ada", method="GET", body=None, **headers):
        names = {"host": "Host", "site": "Sec-Fetch-Site", "mode": "Sec-Fetch-Mode", "ours": "X-TorchYard"}
        sent = {"Host": HOST} | ({"Authorization": f"Bearer {token}"} if token else {})
        sent |= {names[key]: value for key, value in headers.items()}
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, self.url + path, data=body, headers=sent) as answer,
        ):
            answer.text_read = await answer.text()
            return answer


@contextlib.asynccontextmanager
async def serve(clock=None):
    cluster = Cluster()
    async with serving(cluster.answer) as url, ApiServer(url, None).opened() as server:
        users = Users(server, **({"clock": clock} if clock else {}))
        runner = web.AppRunner(application(users, [HOST], ["team", "other"]), shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Served(cluster, users, f"http://127.0.0.1:{runner.addresses[0][1]}")
        await users.close()
        await runner.cleanup()


async def test_a_user_sees_what_the_api_server_shows_this_user_and_no_answer_is_shared():
    async with serve() as page:
        assert json.loads((await page.ask("/api/places")).text_read) == {
            "places": ["team"], "shown": ["team"], "reading": True,
        }  # fmt: skip
        assert json.loads((await page.ask("/api/places", "bob")).text_read)["places"] == []
        for topic in ("jobs|team", "job|team|team/cvrp", "curves|team|team/cvrp|overview"):
            assert (await page.ask(f"/api/topic?topic={topic}")).status == 200
            for token, status in (("bob", 403), ("eve", 401), ("", 401)):
                answer = await page.ask(f"/api/topic?topic={topic}", token)
                assert answer.status == status
                assert "cvrp" not in answer.text_read
        job = json.loads((await page.ask("/api/topic?topic=job|team|team/cvrp")).text_read)
        assert (job["name"], job["events"]) == ("cvrp", [])  # events are not this user's to read
        assert (await page.ask("/api/topic?topic=jobs|*")).status == 403


async def test_nothing_but_reads_leaves_the_page_and_each_with_the_token_of_its_request():
    async with serve() as page:
        for what in ("delete", "suspend", "resume", "submit", "open", "artifacts", "stacks", "profile", "importances"):
            body = json.dumps({"what": what, "place": "team", "name": "team/cvrp", "text": "kind: TrainingJob"})
            answer = await page.ask("/api/ask", "ada", "POST", body, ours="1")
            assert "there is no request" in answer.text_read
        body = json.dumps(
            {"what": "diff", "place": "team", "name": "team/cvrp", "otherPlace": "team", "otherName": "team/cvrp"}
        )
        assert "differences" in (await page.ask("/api/ask", "ada", "POST", body, ours="1")).text_read
        await page.ask("/api/topic?topic=logs|team|team/cvrp", "bob")
        sent = {(method, path == REVIEW) for _, method, path in page.cluster.asked}
        assert sent == {("GET", False), ("POST", True)}
        assert {token for token, _, _ in page.cluster.asked} == {"ada", "bob"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"site": "cross-site"}, 403),
        ({"site": "same-site", "mode": "navigate"}, 403),
        ({"host": f"{HOST}:8443", "site": "same-origin"}, 200),
    ],
)
async def test_requests_of_other_sites_and_names_are_rejected_with_a_valid_token(headers, status):
    async with serve() as page:
        answer = await page.ask("/api/topic?topic=jobs|team", **headers)
        assert answer.status == status
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert not answer.cookies


async def test_after_the_login_of_a_proxy_a_browser_comes_from_another_site():
    async with serve() as page:
        assert (await page.ask("/", site="cross-site", mode="navigate")).status == 200
        assert (await page.ask("/healthz", token="", host="10.0.0.7:8443")).text_read == "ok\n"


@pytest.mark.parametrize("header", ["Basic YWRhOng=", "Bearer", "Bearer a b", "bearer a;b"])
async def test_what_is_no_bearer_token_never_reaches_the_api_server(header):
    async with serve() as page, aiohttp.ClientSession() as session:
        answer = await session.get(f"{page.url}/", headers={"Host": HOST, "Authorization": header})
        assert (answer.status, page.cluster.asked) == (401, [])
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


async def test_a_page_of_many_requests_is_one_review_and_tokens_are_forgotten():
    now = [1000.0]
    async with serve(lambda: now[0]) as page:
        reviews = lambda: sum(path == REVIEW for _, _, path in page.cluster.asked)  # noqa: E731
        await asyncio.gather(*(page.ask("/") for _ in range(20)))
        assert reviews() == 1
        now[0] += REVIEW_SECONDS + 1
        await page.ask("/")
        assert reviews() == 2
        for number in range(MAX_USERS + 10):
            now[0] += 11
            await page.ask("/", f"user{number}")
        assert len(page.users._users) == MAX_USERS
        now[0] += 1000
        await page.users.look()
        assert len(page.users._users) == 0


async def test_a_stream_ends_when_its_token_expires():
    now = [1000.0]
    async with serve(lambda: now[0]) as page, aiohttp.ClientSession() as session:
        headers = {"Host": HOST, "Authorization": "Bearer ada"}
        stream = await session.get(f"{page.url}/api/stream", headers=headers)
        assert b"hello" in await stream.content.readuntil(b"{}\n\n")
        page.cluster.expired.add("ada")
        now[0] += REVIEW_SECONDS + 1
        await page.users.look()
        await asyncio.wait_for(stream.content.read(), DEADLINE)
        assert (await page.ask("/")).status == 401
