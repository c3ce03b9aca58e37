"""How fast the page of `torchyard ui` shows lists, long curves and new points, in headless Chromium.

python benchmarks/page.py [--jobs 1000] [--points 1000000] [--live 40]

Times are of the clock: from the navigation to the picture, and from the append to the text in the page.
"""

import argparse
import asyncio
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from aiohttp import web
from list_runs import make
from playwright.async_api import BrowserContext, Page, async_playwright

from torchyard.client.location import HERE
from torchyard.local.run import run_folder
from torchyard.ui.access import Access
from torchyard.ui.server import application

GOALS = {"list": 0.3, "long curve": 0.3, "new point, 95th percentile": 0.5}


async def until(tab: Page, expression: str) -> float:
    """Return the seconds until an expression is true in a page."""
    begun = time.perf_counter()
    while not await tab.evaluate(expression):
        if time.perf_counter() - begun > 60:
            raise TimeoutError(expression)
        await asyncio.sleep(0.005)
    return time.perf_counter() - begun


def rows(first: int, end: int) -> str:
    return "".join(
        json.dumps({"step": step, "loss": math.exp(-step / 1e5) + (step == 123_456), "gradNorm": 1 + step % 7}) + "\n"
        for step in range(first, end)
    )


async def measure(context: BrowserContext, url: str, link: str, home: Path, options: argparse.Namespace) -> None:
    tab = await context.new_page()
    await tab.goto(link)
    await until(tab, "document.querySelectorAll('tbody tr').length >= 200")
    tab = await context.new_page()
    begun = time.perf_counter()
    await tab.goto(url)
    await until(tab, "document.querySelectorAll('tbody tr').length >= 200")
    shown: dict[str, float] = {"list": time.perf_counter() - begun}
    folder = run_folder("run-00001", home)
    chart = "document.querySelector('[role=img][aria-label^=\"loss\"] canvas') !== null"
    folder.checkpoints.mkdir(exist_ok=True)
    (folder.checkpoints / "metrics.jsonl").write_text(rows(0, options.points))
    await tab.goto(f"{url}/#/job/here/run-00001")
    shown["long curve without an index"] = await until(tab, chart)
    tab = await context.new_page()
    begun = time.perf_counter()
    await tab.goto(f"{url}/#/job/here/run-00001")
    await until(tab, chart)
    shown["long curve"] = time.perf_counter() - begun
    print(await tab.evaluate("document.querySelector('[role=img][aria-label^=\"loss\"]').ariaLabel"))
    lags = []
    for number in range(options.live):
        step = options.points + number
        await asyncio.sleep(0.137 * (number % 7))
        with (folder.checkpoints / "metrics.jsonl").open("a") as file:
            file.write(rows(step, step + 1))
        text = f"at step {step:,}"
        lags.append(await until(tab, f"document.body.innerText.includes({text!r})"))
    shown["new point, median"] = statistics.median(lags)
    shown["new point, 95th percentile"] = sorted(lags)[int(0.95 * len(lags))]
    heap = await tab.evaluate("performance.memory ? performance.memory.usedJSHeapSize : 0")
    for what, seconds in shown.items():
        print(f"{what:<32}{seconds:8.3f} s" + (f"   goal {GOALS[what]} s" if what in GOALS else ""))
    print(f"heap of the page: {heap / 2**20:.1f} MiB")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--live", type=int, default=40)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or sys.exit("this needs chromium")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHYARD_HOME"] = folder
        for number in range(options.jobs):
            make(Path(folder), number)
        links: list[str] = []
        access = Access(7997, links.append)
        runner = web.AppRunner(application({"here": HERE}, access))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 7997).start()
        access.new_link()
        async with async_playwright() as play:
            browser = await play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            context = await browser.new_context()
            url = "http://127.0.0.1:7997"
            await measure(context, url, url + links[0], Path(folder), options)
            await browser.close()
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
