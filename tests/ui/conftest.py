"""The page over real runs in a folder of its own, and one browser for all tests if this machine has one."""

import json
import re
import time

import msgspec
import pytest
import pytest_asyncio
from tests.support.page_home import run
from tests.support.page_server import PageServer
from tests.support.trainers.browser import BROWSER
from tests.support.waiting import DEADLINE

from torchyard.api.resource import read_job
from torchyard.api.status import Progress, TrainingJobStatus
from torchyard.api.values import Time
from torchyard.local.run import write_status_file
from torchyard.ui.server import LIBRARIES, STATIC

needs_libraries = pytest.mark.skipif(
    not all((STATIC / "lib" / name).is_file() for name in LIBRARIES), reason="`make install` installs the libraries"
)
one_loop = pytest.mark.asyncio(loop_scope="session")


class Page(PageServer):
    def run(self, name, state, **status):
        started = Time.of(time.time() - 60)
        spec = status.pop("spec", {"script": "pass"})
        return run(self.home, name, spec, TrainingJobStatus(state=state, start_time=started, **status))

    def step(self, folder, step):
        job = read_job(json.loads(folder.job_file.read_text()))
        status = TrainingJobStatus(state="Running", progress=Progress(step=step, total_steps=100, percent=float(step)))
        write_status_file(folder, msgspec.structs.replace(job, status=status))


@pytest_asyncio.fixture(loop_scope="session")
async def page(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    made = Page(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def chromium():
    from playwright.async_api import async_playwright, expect

    expect.set_options(timeout=1000 * DEADLINE)  # for a busy machine; what is true ends the wait at once
    async with async_playwright() as play:
        started = await play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        await started.close()


@pytest_asyncio.fixture(loop_scope="session")
async def browser(page, chromium):
    """A fresh profile of Chromium; a test fails with what a page writes to its console, or asks another server."""
    written = []
    context = await chromium.new_context(viewport={"width": 1000, "height": 800})
    context.set_default_timeout(1000 * DEADLINE)

    def watched(tab):
        tab.on("console", lambda message: written.append(message.text))
        tab.on("pageerror", lambda error: written.append(str(error)))
        tab.on("dialog", lambda dialog: written.append(f"dialog {dialog.message}"))
        tab.on("request", lambda request: request.url.startswith((page.url, "data:")) or written.append(request.url))

    context.on("page", watched)
    yield context
    await context.close()
    gone = re.compile(r"ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE")
    assert [text for text in written if not gone.search(text)] == []
