"""A server of the page in its own process and tabs of headless Chromium, with what each of them costs."""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from playwright.async_api import Browser, BrowserContext, Page, async_playwright

PROGRAM = str(Path(sys.executable).with_name("torchyard"))
TICKS = os.sysconf("SC_CLK_TCK")
LOOK = """condition => new Promise((found, fail) => {
  const end = performance.now() + 120000;
  const painted = () => setTimeout(() => found([performance.now(), Date.now() / 1000]));
  const look = () => condition() ? requestAnimationFrame(painted)
    : performance.now() > end ? fail(new Error(String(condition))) : requestAnimationFrame(look);
  look();
})"""


class Server(NamedTuple):
    """A server that runs; `link` may be used once."""

    pid: int
    url: str
    link: str

    @property
    def processor(self) -> float:
        """Processor seconds so far, with those of its children that have ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS

    @property
    def mebibytes(self) -> float:
        """The largest resident size so far."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


@asynccontextmanager
async def serving(home: Path, port: int) -> AsyncIterator[Server]:
    """Run `torchyard ui` over a folder of runs, without clusters."""
    environment = {**os.environ, "TORCHYARD_HOME": str(home), "KUBECONFIG": os.devnull, "HOME": str(home)}
    command = [PROGRAM, "ui", "--no-browser", "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, env=environment)
    try:
        while "?t=" not in (line := (await process.stderr.readline()).decode()):
            if not line:
                raise RuntimeError("`torchyard ui` has ended")
        yield Server(process.pid, f"http://127.0.0.1:{port}", line.split()[-1])
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start the browser of this machine."""
    path = shutil.which("chromium") or sys.exit("this needs chromium")
    async with async_playwright() as play:
        browser = await play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        await browser.close()


async def processor(browser: Browser) -> float:
    """Return the processor seconds of all processes of the browser so far."""
    session = await browser.new_browser_cdp_session()
    processes = await session.send("SystemInfo.getProcessInfo")
    await session.detach()
    return sum(each["cpuTime"] for each in processes["processInfo"])


async def heap(tab: Page) -> float:
    """Return the MiB of JavaScript objects of a tab, garbage among them."""
    session = await tab.context.new_cdp_session(tab)
    await session.send("Performance.enable")
    metrics = await session.send("Performance.getMetrics")
    await session.detach()
    return next(each["value"] for each in metrics["metrics"] if each["name"] == "JSHeapUsedSize") / 2**20


async def until(tab: Page, condition: str) -> tuple[float, float]:
    """Wait until a condition is true and painted; return the seconds since the navigation, and the unix time."""
    since, at = await tab.evaluate(f"({LOOK})(() => {condition})")
    return since / 1000, at


class Shown(NamedTuple):
    """What it cost to show something: seconds by the clock and of processors, and the memory then."""

    seconds: float
    browser: float
    server: float
    heap: float

    def __str__(self) -> str:
        return (
            f"{self.seconds:7.3f} s by the clock; processor: browser {self.browser:.2f} s, server {self.server:.2f} s;"
            f" heap {self.heap:.1f} MiB"
        )


async def opened(context: BrowserContext, server: Server, url: str, condition: str) -> tuple[Page, Shown]:
    """Open an address in a new tab; return the tab, and what it cost until a condition was true."""
    browser = context.browser
    tab = await context.new_page()
    before = await processor(browser), server.processor
    await tab.goto(url, wait_until="commit", timeout=120_000)
    seconds, _ = await until(tab, condition)
    after = await processor(browser), server.processor
    return tab, Shown(seconds, after[0] - before[0], after[1] - before[1], await heap(tab))


@contextmanager
def spent(server: Server, what: str) -> Iterator[None]:
    """Print the share of a core that the server takes within the block."""
    begun, before = time.perf_counter(), server.processor
    yield
    elapsed = time.perf_counter() - begun
    print(f"{what}: server {100 * (server.processor - before) / elapsed:.1f} % of a core")


def goal(what: str, shown: Any, limit: str) -> None:
    """Print one row."""
    print(f"{what:<44}{shown}   goal {limit}", flush=True)
