"""How fast the page of `torchyard ui` shows lists, long curves and new points, in headless Chromium.

python benchmarks/page.py [--only list long live fifty thousand] [--jobs 1000] [--points 1000000] [--live 40]
    [--peers ENVIRONMENT]

Times are of the clock, as the browser has it: from the navigation to the picture, and from the append to the text in
the page. Processor times are those of all processes of the browser, and of the server.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

import page_peers
from list_runs import make
from page_browser import Server, chromium, goal, opened, serving, spent, until
from page_sets import long as long_runs
from page_sets import rows, short
from playwright.async_api import BrowserContext

from torchyard.local.run import run_folder

SHAPES = ("list", "long", "live", "fifty", "thousand")
PORT = 7997
ROWS = "document.querySelectorAll('tbody tr').length >= 200"
OVERLAID = "[...document.querySelectorAll('.plot.tall canvas')].length >= {}"
CHART = "document.querySelector('[role=img][aria-label^=\"loss\"] canvas') !== null"


async def the_list(context: BrowserContext, server: Server, jobs: int) -> None:
    tab, shown = await opened(context, server, server.link, ROWS)
    goal(f"list of {jobs:,} jobs, first time", shown, "none")
    await tab.close()
    best = []
    for _ in range(5):
        tab, shown = await opened(context, server, server.url, ROWS)
        best.append(shown)
        await tab.close()
    goal(f"list of {jobs:,} jobs, best of 5", min(best), "0.3 s; 0.6 s with 10,000")


async def long(context: BrowserContext, server: Server, home: Path, points: int) -> None:
    folder = run_folder("run-00001", home)
    (folder.checkpoints / "metrics.jsonl").write_text(rows(0, points))
    url = f"{server.url}/#/job/here/run-00001"
    tab, shown = await opened(context, server, url, CHART)
    goal(f"{points:,} points without an index", shown, "none")
    await tab.close()
    best = []
    for _ in range(5):
        tab, shown = await opened(context, server, url, CHART)
        best.append(shown)
        await tab.close()
    goal(f"{points:,} points, best of 5", min(best), "0.3 s")
    tab, _ = await opened(context, server, url, CHART)
    print(await tab.evaluate("document.querySelector('[role=img][aria-label^=\"loss\"]').ariaLabel"))
    await tab.close()


async def live(context: BrowserContext, server: Server, home: Path, points: int, times: int) -> None:
    path = run_folder("run-00001", home).checkpoints / "metrics.jsonl"
    with path.open("a") as file:  # as much as is ever behind the index
        file.write(rows(points, points + points // 17))
    tab, _ = await opened(context, server, f"{server.url}/#/job/here/run-00001", CHART)
    lags = []
    with spent(server, f"{times} new points"):
        for number in range(times):
            step = points * 2 + number
            await asyncio.sleep(0.137 * (number % 7))
            text = f"at step {step:,}"
            waits = asyncio.create_task(
                until(tab, f"document.querySelector('[role=img][aria-label^=\"loss\"]').ariaLabel.includes({text!r})")
            )
            await asyncio.sleep(0.02)
            with path.open("a") as file:
                file.write(rows(step, step + 1))
            written = time.time()
            lags.append((await waits)[1] - written)
    shown = f"median {statistics.median(lags):.3f} s, 95th percentile {sorted(lags)[int(0.95 * len(lags))]:.3f} s"
    goal("a new point", shown, "0.5 s (95th percentile)")
    with spent(server, "idle for 5 s with the job on screen"):
        await asyncio.sleep(5)
    await tab.close()


async def overlaid(home: Path, runs: int, charts: int, what: str, limit: str) -> None:
    """Show some runs over each other, the first time and again, with a server and a browser of their own."""
    async with serving(home, PORT) as server, chromium() as browser:
        context = await browser.new_context()
        tab, _ = await opened(context, server, server.link, "document.querySelector('tbody tr') !== null")
        await tab.close()
        url = f"{server.url}/#/curves/here/" + "/".join(f"run-{number:05}" for number in range(runs))
        first = []
        for _ in range(3):
            tab, shown = await opened(context, server, url, OVERLAID.format(charts))
            first.append(shown)
            await tab.close()
        goal(f"{what}, first time", first[0], "none")
        goal(f"{what}, best of 3", min(first), limit)
        print(f"server: at most {server.mebibytes:.0f} MiB")


async def one_home(options: argparse.Namespace) -> None:
    """Show the list, a long curve and new points."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for number in range(options.jobs):
            make(home, number)
        run_folder("run-00001", home).checkpoints.mkdir(exist_ok=True)
        async with serving(home, PORT) as server, chromium() as browser:
            context = await browser.new_context()
            await the_list(context, server, options.jobs)
            if {"long", "live"} & set(options.only):
                await long(context, server, home, options.points)
            if "live" in options.only:
                await live(context, server, home, options.points, options.live)
            print(f"server: {server.processor:.2f} s of processor in all, at most {server.mebibytes:.0f} MiB")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--live", type=int, default=40)
    parser.add_argument("--peers", type=Path, help="an environment with trackio and tensorboard: show them, too")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    if {"list", "long", "live"} & set(options.only):
        await one_home(options)
    if "fifty" in options.only:
        with tempfile.TemporaryDirectory() as folder:
            short(Path(folder), 50, 2000)
            await overlaid(Path(folder), 50, 2, "50 runs x 2,000 points x 2 metrics", "0.5 s, 30 MiB")
        if options.peers:
            with tempfile.TemporaryDirectory() as folder:
                await page_peers.show(options.peers, Path(folder), 50, 2000)
    if "long" in options.only and options.peers:
        with tempfile.TemporaryDirectory() as folder:
            await page_peers.show(options.peers, Path(folder), 1, min(options.points, 200_000))
    if "thousand" in options.only:
        with tempfile.TemporaryDirectory() as folder:
            long_runs(Path(folder), 1000, options.points)
            what = f"1,000 runs x {options.points:,} points, one metric"
            await overlaid(Path(folder), 1000, 1, what, "1 s, 60 MiB, server 100 MiB")


if __name__ == "__main__":
    asyncio.run(main())
