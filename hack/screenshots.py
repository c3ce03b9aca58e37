"""Take the pictures of docs/page.md: the page over example runs, in headless Chromium.

python hack/screenshots.py [FOLDER]      by default docs/images
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.async_api import Browser, async_playwright, expect  # noqa: E402
from tests.support.page_home import example  # noqa: E402
from tests.support.page_server import PageServer  # noqa: E402
from tests.support.trainers.browser import BROWSER  # noqa: E402

WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
PICTURES: dict[str, dict[str, Any]] = {
    "page-list": {"at": "#/list"},
    "page-job": {"at": "#/job/here/lm-pretrain", "waits": "loss:"},
    "page-job-dark": {"at": "#/job/here/lm-pretrain", "waits": "loss:", "dark": True, "below": "Curves"},
    "page-comparison": {"at": "#/diff/here/cvrp-base/here/cvrp-wide", "waits": "cost:"},
    "page-sweep": {"at": "#/sweep/here/tune", "waits": "evalReturn of", "below": "History"},
    "page-failure": {"at": "#/job/here/vit-finetune", "waits": "loss:"},
    "page-phone": {"at": "#/job/here/lm-pretrain", "waits": "loss:", "size": PHONE},
}


async def main(folder: Path) -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory(prefix="torchyard-") as home:
        os.environ["TORCHYARD_HOME"] = home
        example(Path(home), time.time())
        server = PageServer(Path(home))
        await server.start()
        async with async_playwright() as play:
            chromium = await play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
            for name, picture in PICTURES.items():
                await _take(chromium, server, folder / f"{name}.png", **picture)
            await chromium.close()
        await server.stop()


async def _take(
    chromium: Browser, server: PageServer, file: Path, *, at: str, waits: str = "", dark: bool = False,
    size: Any = WIDE, below: str = "",
) -> None:  # fmt: skip
    tab = await chromium.new_page(viewport=size, color_scheme="dark" if dark else "light")
    await tab.goto(server.link)
    await tab.goto(f"{server.url}/{at}")
    await expect(tab.get_by_role("heading", level=1)).to_be_visible(timeout=60_000)
    if waits:
        await expect(tab.get_by_role("img", name=waits).first).to_be_visible(timeout=60_000)
    if below:
        await tab.get_by_role("heading", name=below, exact=True).evaluate(
            "each => scrollTo(0, each.getBoundingClientRect().top - 40)"
        )
    await asyncio.sleep(1.0)  # the chart is drawn, and the picture has no caret
    await tab.screenshot(path=file)
    await tab.close()
    print(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file)


if __name__ == "__main__":
    pictures = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    pictures.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(pictures))
