"""Draw docs/images/run.svg from a real run: two nodes train, one worker is killed with SIGKILL on the way.

python hack/picture.py
"""

import asyncio
import io
import json
import os
import re
import signal
import tempfile
from pathlib import Path

from rich.console import Console

from torchyard.cli.commands import foreground
from torchyard.cli.views import terminal
from torchyard.cli.views.live import render
from torchyard.cli.views.snapshot import Snapshot
from torchyard.client.files import job_of
from torchyard.client.start import RequestedJob
from torchyard.local.run import RunFolder

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs/images/run.svg"
KILL_PERCENT, DRAW_PERCENT = 40.0, 80.0
WIDTH, HEIGHT = 100, 40


class Artist:
    """A view that kills a worker at one point of the run and draws at a later one."""

    def __init__(self, folder: RunFolder) -> None:
        """Draw the run in `folder`."""
        self.folder = folder
        self.drawn = False

    def show(self, snapshot: Snapshot) -> None:
        """Look at the run, as the terminal's view does."""
        percent, round_number = snapshot.job.status.progress.percent or 0.0, snapshot.job.status.round
        if percent >= KILL_PERCENT and round_number == 1 and snapshot.job.status.state == "Running":
            file = next(self.folder.pods.glob("*-1/run/workers.json"))
            os.kill(int(next(iter(json.loads(file.read_text())["pids"].values()))), signal.SIGKILL)
        if percent >= DRAW_PERCENT and round_number > 1 and not self.drawn:
            console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
            console.print(render(snapshot, WIDTH, HEIGHT))
            TARGET.write_text(offline(console.export_svg(title="torchyard run examples/cvrp.yaml")), encoding="utf-8")
            self.drawn = True

    def close(self, snapshot: Snapshot | None) -> None:
        """Nothing is held."""


def offline(svg: str) -> str:
    """The drawing without fonts from the network: any monospace font will do, every run of text has its length."""
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")


def main() -> None:
    """Run the example and draw it."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["TORCHYARD_HOME"] = home
        example = ROOT / "examples/cvrp.yaml"
        folder = foreground.start(RequestedJob(job_of(example, ()), example.parent, str(example), is_file=True))
        artist = Artist(folder)
        terminal.view_for_this_terminal = lambda: artist
        job = asyncio.run(foreground.Watching(folder).until_over())
    print(f"{TARGET.relative_to(ROOT)}: {job.status.state}, {job.status.restarts.total} restart")


if __name__ == "__main__":
    main()
