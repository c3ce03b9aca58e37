"""The same histories in trackio and TensorBoard, in the browser of `page.py`.

Both are installed in an environment of their own: `python -m venv PEERS && PEERS/bin/pip install trackio tensorboard`.
"""

import asyncio
import os
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from page_browser import Server, chromium, goal, opened

WRITE = """
import math, sys
what, folder, runs, points = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def values(step, number):
    return {"loss": (1 + number / 10) * math.exp(-step / 1e5), "gradNorm": 1.0 + step % 7}
for number in range(runs):
    if what == "trackio":
        import trackio
        trackio.init(project="peers", name=f"run-{number}")
        for step in range(points):
            trackio.log(values(step, number), step=step)
        trackio.finish()
    else:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        writer = EventFileWriter(f"{folder}/run-{number}")
        for step in range(points):
            scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values(step, number).items()]
            writer.add_event(Event(step=step, wall_time=1e9 + step, summary=Summary(value=scalars)))
        writer.close()
"""
# What shows that curves are drawn; two metrics have two charts.
DRAWN = {
    "trackio": "document.querySelectorAll('canvas').length >= 2",
    "tensorboard": "document.querySelectorAll('scalar-card line-chart svg, scalar-card line-chart canvas').length >= 2",
}


@asynccontextmanager
async def _serving(command: list[str], port: int, environment: dict[str, str]) -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=-3, stderr=-3)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1200):
            with suppress(OSError):
                await asyncio.to_thread(urllib.request.urlopen, url, timeout=5)
                break
            await asyncio.sleep(0.1)
        yield Server(process.pid, url, url)
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def show(peers: Path, folder: Path, runs: int, points: int) -> None:
    """Write the histories of both peers below a folder, and show them: so many runs of so many points of two metrics.

    Args:
        peers: an environment that has both.
        folder: empty.
        runs: of each peer.
        points: of each run.
    """
    environment = {**os.environ, "TRACKIO_DIR": str(folder / "trackio"), "HOME": str(folder)}
    environment |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_SERVER_PORT": "7995"}
    commands = {
        "trackio": [f"{peers}/bin/trackio", "show", "--project", "peers"],
        "tensorboard": [f"{peers}/bin/tensorboard", "--logdir", str(folder / "tensorboard"), "--port", "7995"],
    }
    for what, command in commands.items():
        arguments = [what, str(folder / what), str(runs), str(points)]
        writes = [f"{peers}/bin/python", "-c", WRITE, *arguments]
        await asyncio.to_thread(subprocess.run, writes, env=environment, check=True)
        async with _serving(command, 7995, environment) as server, chromium() as browser:
            context = await browser.new_context()
            _, shown = await opened(context, server, server.url, DRAWN[what])
            goal(f"{what}: {runs} x {points:,} points x 2 metrics", shown, "a peer")
