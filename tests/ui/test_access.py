"""The page answers one user: not another site, another name of this machine, or a program without the cookie."""

import json

import aiohttp
import pytest
from tests.ui.conftest import needs_libraries, one_loop
from yarl import URL

pytestmark = [needs_libraries, one_loop]
TOPIC = "/api/topic?topic=jobs|here"


async def ask(page, path, cookie=None, method="GET", body=None, **headers):
    names = {"host": "Host", "site": "Sec-Fetch-Site", "ours": "X-TorchYard"}
    cookies = {f"torchyard-{page.port}": cookie} if cookie else {}
    async with (
        aiohttp.ClientSession(cookies=cookies, cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.request(
            method, URL(page.url + path, encoded=True), data=body,
            headers={names[key]: value for key, value in headers.items()},
            cookies=cookies, allow_redirects=False,
        ) as answer,
    ):  # fmt: skip
        answer.text_read = await answer.text()
        return answer


async def asked(page, cookie, **body):
    answer = await ask(page, "/api/ask", cookie, "POST", json.dumps(body), ours="1")
    return answer.text_read


async def cookie_of(page):
    answer = await ask(page, page.links[-1])
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    (cookie,) = answer.cookies.values()
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    return cookie.value


async def test_a_link_works_once_and_its_cookie_survives_a_restart(page):
    link = page.links[-1]
    cookie = await cookie_of(page)
    assert (await ask(page, link)).status == 401
    assert (await ask(page, "/")).status == 401
    assert (await ask(page, "/", cookie)).status == 200
    await page.stop()
    await page.start()
    assert (await ask(page, TOPIC, cookie)).status == 200
    assert (await ask(page, TOPIC, cookie[:-1])).status == 401
    assert (page.home / "ui.secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1"}, 403),
        ({"site": "cross-site"}, 403),
        ({"site": "same-site"}, 403),
        ({"site": "same-origin"}, 200),
    ],
)
async def test_foreign_names_and_sites_are_refused_even_with_the_cookie(page, headers, status):
    cookie = await cookie_of(page)
    for path in (TOPIC, "/", "/api/places", "/api/stream?x"):
        if status != 200 or "stream" not in path:
            answer = await ask(page, path, cookie, **headers)
            assert answer.status == status
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


async def test_a_change_needs_the_header_that_no_form_can_send(page):
    cookie = await cookie_of(page)
    assert (await ask(page, "/api/watch", cookie, "POST")).status == 403
    assert (await ask(page, "/api/watch", cookie, "POST", ours="1")).status == 400


async def test_files_of_a_job_are_confined_to_their_artifact_and_need_its_token(page):
    cookie = await cookie_of(page)
    folder = page.run("done", "Succeeded")
    (folder.checkpoints / "final").mkdir()
    (folder.checkpoints / "final" / "page.html").write_text("<script>1</script>")
    (folder.checkpoints / "final" / "link").symlink_to(page.home / "ui.secret")
    (folder.checkpoints / "out").symlink_to(page.home)
    opened = json.loads(await asked(page, cookie, what="open", name="done", path="final"))
    assert [each["path"] for each in opened["files"]] == ["page.html"]
    answer = await ask(page, f"{opened['url']}page.html", site="cross-site")  # no cookie: its page has no origin
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert f"connect-src http://127.0.0.1:{page.port}{opened['url']} data: blob:;" in policy
    for path in ("link", "..%2F..%2F..%2Fui.secret", "%2Fetc%2Fpasswd", "", "none"):
        assert (await ask(page, opened["url"] + path)).status == 404
    assert (await ask(page, f"/files/{'x' * 32}/page.html")).status == 404
    assert (await ask(page, f"{opened['url']}page.html", host="evil.example")).status == 403
    for path in ("out", "../..", "/etc", ""):
        assert '"error"' in await asked(page, cookie, what="open", name="done", path=path)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "jobs",
        "jobs|there",
        "job|here|../../etc",
        "job|here|x|y",
        "curves|here|x|huge",
        "logs|here|" + "x" * 500,
        "sweep|here|../x",
    ],
)
async def test_odd_topics_are_errors_in_words(page, topic):
    cookie = await cookie_of(page)
    answer = await ask(page, f"/api/topic?topic={topic}", cookie)
    assert answer.status in {200, 400}
    assert '"error"' in answer.text_read
