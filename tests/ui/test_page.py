"""The page in a real browser: live, by keyboard, at the width of a phone, and never confused by what a job writes."""

import asyncio
import json
import math
import re
import time
from pathlib import Path

import pytest
from playwright.async_api import expect
from tests.support.page_home import example, log, sweep
from tests.support.trainers.browser import needs_browser
from tests.ui.conftest import needs_libraries, one_loop

from torchyard.api.status import Attempt, Cause, State
from torchyard.api.values import Time

pytestmark = [needs_browser, needs_libraries, one_loop]
HOSTILE = [
    "<img src=x onerror=alert(1)>", "<script>alert(2)</script>", '"><svg onload=alert(3)>', "'-alert(4)-'",
    "`${alert(5)}`", "{{7*7}}", "&lt;b&gt;", "javascript:alert(6)", "</textarea><script>alert(7)</script>",
    "<iframe src=//x.example>",
    "<a href=javascript:alert(8)>x</a>", "__proto__", "constructor", "hasOwnProperty", "%3Cscript%3E", "a b&c=d#e?f",
    "../../etc/passwd", "<style>*{display:none}</style>", "\u202egnp.exe", "<!--", "toString",
]  # fmt: skip
AXE = Path(__file__).parents[2] / "ui/node_modules/axe-core/axe.min.js"
QUICK = {"resultTypes": ["violations"], "iframes": False}
PAGES = {"#/list": "lm-pretrain", "#/job/here/lm-pretrain": "at step 6,400", "#/job/here/vit-finetune": "First cause",
         "#/sweep/here/tune": "trained to its end", "#/diff/here/cvrp-base/here/cvrp-wide": "Specification",
         "#/new/here/cvrp-base/job": "Valid"}  # fmt: skip
TABS = 12  # a browser opens six connections to a server


def append(folder, first, end, value=lambda step: 100.0 - step):
    with (folder.checkpoints / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": step, "loss": value(step)}) + "\n" for step in range(first, end))


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


async def test_new_points_appear_in_every_tab_and_after_a_restart_of_the_server(page, browser):
    folder = page.run("live", State.RUNNING)
    append(folder, 0, 10)
    log(folder, 0, ["line one"])
    tabs = [await browser.new_page() for _ in range(TABS)]
    await tabs[0].goto(page.link)
    await asyncio.gather(*(tab.goto(page.url + "/#/list") for tab in tabs[:-1]))  # a small page each
    await tabs[-1].goto(page.url + "/#/job/here/live")
    last = tabs[-1]

    async def shown(step):
        page.step(folder, step)
        append(folder, step - 10, step + 1)
        rows = (tab.get_by_role("cell", name=f"{step}/100") for tab in tabs[:-1])
        await asyncio.gather(*(expect(row).to_be_visible() for row in rows))
        await expect(last.get_by_role("img", name=f"loss: {100 - step} at step {step}")).to_be_visible()

    await shown(20)
    await tabs.pop(0).close()  # it held the stream
    await shown(30)
    await page.stop()
    (folder.checkpoints / "metrics.jsonl").open("a").write('{"step": 31, "lo')
    await page.start()
    with (folder.checkpoints / "metrics.jsonl").open("a") as file:
        file.write('ss": 69.0}\n')
    await shown(50)
    await expect(last.get_by_role("log")).to_contain_text("line one")


async def test_text_of_jobs_and_sweeps_is_text(page, browser):
    cause = Cause(rank=0, pod=HOSTILE[0], class_="WorkerFailed", exception=HOSTILE[1], lines=HOSTILE)
    times = [Time.of(seconds) for seconds in (9e8, 8e8, 8.5e8, 7e8)]  # the clock was set back twice
    folder = page.run(
        "evil", State.FAILED, message=HOSTILE[2], warnings=HOSTILE, devices={HOSTILE[3]: HOSTILE[4]},
        attempts=[Attempt(round=1, reason="WorkerFailed", cause=cause, start_time=times[0], end_time=times[1]),
                  Attempt(round=2, start_time=times[2], end_time=times[3], start_step=1, end_step=3)],
    )  # fmt: skip
    with (folder.checkpoints / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps({"step": step, **dict.fromkeys(HOSTILE, 1.0)}) + "\n" for step in (1, 2))
        file.write('{"step": 3, "lo')
    log(folder, 0, HOSTILE)
    for name in HOSTILE:
        (folder.checkpoints / name.replace("/", "_")).mkdir()
        (folder.checkpoints / name.replace("/", "_") / f"{name.replace('/', '_')}.txt").write_text(name)
    lines = [json.dumps({"time": each, "type": "Warning", "reason": each, "message": each}) for each in HOSTILE]
    folder.events_file.write_text("\n".join(lines) + "\n")
    sweep(page.home, time.time(), trials=4, choices=tuple(HOSTILE))
    tab = await browser.new_page()
    await tab.goto(page.link)
    await tab.goto(page.url + "/#/job/here/evil")
    for text in (each.strip("\u202e") for each in HOSTILE):
        await expect(tab.get_by_role("log")).to_contain_text(text)
        await expect(tab.get_by_role("region", name="Rounds")).to_contain_text(text)
        await expect(tab.locator(".events")).to_contain_text(text)
    await expect(tab.get_by_role("img")).to_have_count(len(HOSTILE))
    await tab.get_by_role("combobox", name="x axis").select_option("wall")
    await tab.get_by_role("button", name="List files").click()
    await tab.get_by_role("button", name=f"open {HOSTILE[0].replace('/', '_')}").click()
    await expect(tab.get_by_role("link", name="download")).to_have_count(1)
    assert await tab.evaluate("document.querySelectorAll('img, script:not([src]), iframe').length") == 0
    await tab.goto(page.url + "/#/sweep/here/tune")
    await expect(tab.get_by_role("region", name="Trials").get_by_role("row")).to_have_count(5)
    await expect(tab.get_by_role("region", name="Parallel coordinates").get_by_role("img")).to_be_visible()
    assert await tab.evaluate("document.querySelectorAll('img, script:not([src]), iframe').length") == 0


async def test_an_exported_page_runs_confined_and_pictures_are_shown(page, browser):
    example(page.home, time.time())
    tab = await browser.new_page()
    await tab.goto(page.link)
    await tab.goto(page.url + "/#/job/here/cvrp-wide")
    await tab.get_by_role("button", name="List files").press("Enter")
    await tab.get_by_role("button", name="open final").press("Enter")
    picture = tab.get_by_role("img", name="curve.svg")
    await expect(picture).to_be_visible()
    assert await picture.evaluate("async each => (await each.decode(), each.naturalWidth > 0)")
    await tab.get_by_role("button", name="open export/web").press("Enter")
    frame = tab.frame_locator("iframe")
    await expect(frame.get_by_text("3 layers are loaded; the cookie cannot be read")).to_be_visible()


async def test_a_new_run_is_checked_as_it_is_written_and_starts_with_the_rights_of_the_user(page, browser):
    page.run(
        "old", State.SUCCEEDED, spec={"command": ["python3", "-c", "print('well')"], "launcher": {"kind": "agent"}}
    )
    tab = await browser.new_page()
    await tab.goto(page.link)
    await tab.goto(page.url + "/#/job/here/old")
    await tab.get_by_role("link", name="New run from this").press("Enter")
    form = tab.get_by_label("Specification (YAML)")
    await expect(form).to_have_value(re.compile("name: old-2"))
    text = await form.input_value()
    await form.fill(text + "  nodez: 2\n")
    await expect(tab.get_by_text("spec.nodez")).to_contain_text("nodes")
    await expect(tab.get_by_role("button", name="Run")).to_be_disabled()
    await form.fill(text)
    await expect(tab.get_by_role("button", name="Run")).to_be_enabled()
    await tab.get_by_role("button", name="Run").press("Enter")
    await expect(tab.get_by_text("The job old-2 starts on this machine, with your rights.")).to_be_visible()
    await tab.get_by_role("button", name="Start").press("Enter")
    await expect(tab.get_by_role("heading", name="old-2 Succeeded")).to_be_visible()


@pytest.mark.skipif(not AXE.is_file(), reason="`make install` installs axe")
async def test_axe_finds_nothing_on_any_page_light_or_dark(page, browser):
    example(page.home, time.time())
    tab = await browser.new_page()
    await tab.goto(page.link)
    await tab.evaluate(AXE.read_text())
    for at, waits in PAGES.items():
        await tab.evaluate("at => { location.hash = at; }", at)
        await expect(tab.get_by_text(waits).first).to_be_visible()
        for scheme, options in (("light", QUICK), ("dark", {**QUICK, "runOnly": ["color-contrast"]})):
            await tab.emulate_media(color_scheme=scheme)
            found = await tab.evaluate(
                "options => axe.run(document, options).then(({violations}) => violations)", options
            )
            assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == [], (at, scheme)


async def test_nothing_is_wider_than_a_phone_and_an_action_asks_once(page, browser):
    folder = page.run("a" * 60, State.RUNNING)
    append(folder, 0, 50)
    log(folder, 0, ["x" * 500])
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


async def test_many_jobs_are_drawn_over_each_other(page, browser):
    for number in range(4):
        folder = page.run(f"run-{number}", State.SUCCEEDED)
        append(folder, 0, 3000, lambda step, number=number: number + (step == 1234) * 90 if step != 7 else "NaN")
    page.run("silent", State.FAILED)
    tab = await browser.new_page()
    await tab.goto(page.link)
    await tab.get_by_role("link", name="Curves of 5 jobs").press("Enter")
    chart = tab.get_by_role("img", name="loss:")
    await expect(chart).to_have_attribute("aria-label", re.compile("4 jobs are from 0 to 3; lowest 0, highest 93"))
    await expect(tab.get_by_text("Jobs without this metric: 1")).to_be_visible()
    await tab.get_by_text("Table of loss").click()
    await expect(tab.get_by_role("row")).to_have_count(5)
    append(folder, 3000, 3001, lambda _: 500.0)
    await expect(chart).to_have_attribute("aria-label", re.compile("highest 500"))
    await expect(tab.get_by_role("row", name="run-3 3,000")).to_be_visible()
