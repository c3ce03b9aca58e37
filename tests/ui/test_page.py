"""The page in a real browser: live, by keyboard, at the width of a phone, and never confused by what a job writes."""

import asyncio
import json
import math

from playwright.async_api import expect
from tests.support.trainers.browser import needs_browser
from tests.ui.conftest import needs_libraries

from torchyard.api.status import Attempt, Cause, State

pytestmark = [needs_browser, needs_libraries]
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'`&lt;{{7*7}}${7*7}"
TABS = 8  # a browser opens six connections to a server


def append(folder, first, end, value=lambda step: 100.0 - step):
    with (folder.checkpoints / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": step, "loss": value(step)}) + "\n" for step in range(first, end))


def log(folder, text):
    path = folder.pods / "pod-0" / "logs" / "rank-0.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text + "\n")


async def test_a_job_is_reached_by_keyboard_and_its_curves_are_read_in_words(page, browser):
    folder = page.run("first", State.FAILED)
    page.run("second", State.SUCCEEDED)
    append(folder, 0, 5000, lambda step: 1e6 if step == 1234 else "NaN" if step == 77 else math.exp(-step / 500))
    tab = await browser.new_page()
    await tab.goto(page.link)
    assert tab.url == page.url + "/"
    await expect(tab.get_by_role("row")).to_have_count(3)
    await tab.keyboard.press("/")
    await tab.keyboard.type("FIR fail")
    await expect(tab.get_by_role("row")).to_have_count(2)
    await tab.get_by_role("link", name="first").focus()
    await tab.keyboard.press("Enter")
    await expect(tab.get_by_role("heading", name="first Failed")).to_be_visible()
    chart = tab.get_by_role("img", name="loss:")
    await expect(chart).to_be_visible()
    name = await chart.get_attribute("aria-label")
    assert "highest 1,000,000" in name
    assert "1 value NaN or infinite" in name
    box = await chart.bounding_box()
    async with tab.expect_request(lambda request: "fine" in request.url):  # a zoom reads finer buckets
        await tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
        await tab.mouse.down()
        await tab.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=4)
        await tab.mouse.up()
    await tab.get_by_role("button", name="table of loss").press("Enter")
    await expect(tab.get_by_role("region", name="values of loss").get_by_role("row")).not_to_have_count(0)


async def test_new_points_and_lines_appear_in_every_tab_and_after_a_restart_of_the_server(page, browser):
    folder = page.run("live", State.RUNNING)
    append(folder, 0, 10)
    log(folder, "line one")
    tabs = [await browser.new_page() for _ in range(TABS)]
    await tabs[0].goto(page.link)
    for tab in tabs:
        await tab.goto(page.url + "/#/job/here/live")
        await expect(tab.get_by_role("img", name="loss: 91 at step 9")).to_be_visible(timeout=20_000)
    append(folder, 10, 21)
    await asyncio.gather(
        *(expect(tab.get_by_role("img", name="loss: 80 at step 20")).to_be_visible(timeout=20_000) for tab in tabs)
    )
    await tabs.pop(0).close()  # it held the stream
    append(folder, 21, 31)
    await asyncio.gather(
        *(expect(tab.get_by_role("img", name="loss: 70 at step 30")).to_be_visible(timeout=20_000) for tab in tabs)
    )
    await page.stop()
    await page.start()
    append(folder, 31, 41)
    await expect(tabs[-1].get_by_role("img", name="loss: 60 at step 40")).to_be_visible(timeout=20_000)


async def test_text_of_a_job_is_text(page, browser):
    cause = Cause(rank=0, pod=HOSTILE, class_="WorkerFailed", exception=HOSTILE, lines=[HOSTILE])
    folder = page.run("evil", State.FAILED, message=HOSTILE, warnings=[HOSTILE],
                      attempts=[Attempt(round=1, reason="WorkerFailed", cause=cause), Attempt(round=2)])  # fmt: skip
    with (folder.checkpoints / "metrics.jsonl").open("w") as file:
        file.write(json.dumps({"step": 1, HOSTILE: 1.0}) + "\n" + '{"step": 2, "lo')
    log(folder, HOSTILE)
    (folder.events_file).write_text(
        json.dumps({"time": "x", "type": "Warning", "reason": HOSTILE, "message": HOSTILE}) + "\n"
    )
    tab = await browser.new_page()
    await tab.goto(page.link)
    await tab.goto(page.url + "/#/job/here/evil")
    await expect(tab.get_by_text(HOSTILE).first).to_be_visible()
    await expect(tab.get_by_role("log")).to_contain_text(HOSTILE)
    await expect(tab.get_by_role("img")).to_have_count(1)
    assert await tab.evaluate("document.querySelectorAll('img, script:not([src])').length") == 0


async def test_nothing_is_wider_than_a_phone_and_an_action_asks_once(page, browser):
    folder = page.run("a" * 60, State.RUNNING)
    append(folder, 0, 50)
    log(folder, "x" * 500)
    tab = await browser.new_page()
    await tab.set_viewport_size({"width": 320, "height": 700})
    await tab.emulate_media(color_scheme="dark")
    await tab.goto(page.link)
    for _ in range(2):
        await expect(tab.get_by_role("heading", level=1)).to_be_visible()
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 320
        await tab.goto(f"{page.url}/#/job/here/{'a' * 60}")
    await expect(tab.get_by_role("img", name="loss:")).to_be_visible()
    await tab.get_by_role("button", name="Delete").press("Enter")
    await tab.get_by_role("button", name="Cancel").press("Enter")
    assert folder.path.exists()
    await tab.get_by_role("button", name="Delete").press("Enter")
    await expect(tab.get_by_text("Its logs and checkpoints are deleted")).to_be_visible()
    await tab.get_by_role("dialog").get_by_role("button", name="Delete").press("Enter")
    await expect(tab.get_by_text("There are no jobs yet")).to_be_visible()
    assert not folder.path.exists()
