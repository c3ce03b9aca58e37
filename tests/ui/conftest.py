"""The page over real runs in a folder of its own, and a browser if this machine has one."""

import json
import re
import socket
import time

import msgspec
import pytest
from aiohttp import web
from tests.support.trainers.browser import BROWSER

from torchyard.api.resource import read_job
from torchyard.api.status import Progress, TrainingJobStatus
from torchyard.api.values import Time
from torchyard.client.location import HERE
from torchyard.local.run import run_folder, write_status_file
from torchyard.local.runs import create_run
from torchyard.ui.access import Access
from torchyard.ui.server import LIBRARIES, STATIC, application

needs_libraries = pytest.mark.skipif(
    not all((STATIC / "lib" / name).is_file() for name in LIBRARIES), reason="`make install` installs the libraries"
)


class Page:
    """A server on a port that stays the same when it is started again."""

    def __init__(self, home):
        self.home, self.links, self.runner = home, [], None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def start(self):
        access = Access(self.port, self.links.append)
        self.runner = web.AppRunner(application({"here": HERE}, access), shutdown_timeout=0.5)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True).start()
        access.new_link()

    async def stop(self):
        await self.runner.cleanup()

    @property
    def link(self):
        return self.url + self.links[-1]

    def run(self, name, state, **status):
        folder = run_folder(name, self.home)
        job = create_run(folder, read_job({"metadata": {"name": name}, "spec": {"script": "pass"}}), self.home)
        new = TrainingJobStatus(state=state, start_time=Time.of(time.time() - 60), **status)
        write_status_file(folder, msgspec.structs.replace(job, status=new))
        folder.checkpoints.mkdir(exist_ok=True)
        return folder

    def step(self, folder, step):
        job = read_job(json.loads(folder.job_file.read_text()))
        status = TrainingJobStatus(state="Running", progress=Progress(step=step, total_steps=100, percent=float(step)))
        write_status_file(folder, msgspec.structs.replace(job, status=status))


@pytest.fixture
async def page(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    made = Page(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def browser(page):
    """Chromium; a test fails with what a page writes to its console."""
    from playwright.async_api import async_playwright

    written = []
    async with async_playwright() as play:
        chromium = await play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        context = await chromium.new_context(viewport={"width": 1000, "height": 800})

        def watched(tab):
            tab.on("console", lambda message: written.append(message.text))
            tab.on("pageerror", lambda error: written.append(str(error)))
            tab.on("dialog", lambda dialog: written.append(f"dialog {dialog.message}"))
            tab.on(
                "request", lambda request: request.url.startswith((page.url, "data:")) or written.append(request.url)
            )

        context.on("page", watched)
        yield context
        await chromium.close()
    gone = re.compile(r"ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE")
    assert [text for text in written if not gone.search(text)] == []
