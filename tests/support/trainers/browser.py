"""A headless browser for exported pages."""

import functools
import html
import http.server
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from tests.support.waiting import DEADLINE

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None,
    reason="no chromium, chromium-browser or google-chrome on PATH (Debian, Ubuntu: apt-get install chromium)",
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments):
        pass


def open_page(folder: Path, profile: Path, *options: str) -> str:
    """Serve a folder and give its page as it stands after a few seconds of its own time."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [BROWSER, "--headless", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []
    command += [f"--user-data-dir={profile}", "--virtual-time-budget=5000", "--dump-dom", *options]
    try:
        done = subprocess.run(
            [*command, f"http://127.0.0.1:{server.server_port}/index.html"],
            check=False,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
    finally:
        server.shutdown()
    assert done.returncode == 0, done.stderr
    return html.unescape(done.stdout)


def checks(page: str) -> dict[str, tuple[bool, str]]:
    """Return the checks of a page: whether each holds, and its text."""
    found = re.findall(r'<li[^>]*data-check="(\w+)" data-ok="(\w+)">([^<]*)</li>', page)
    return {name: (ok == "true", text) for name, ok, text in found}
