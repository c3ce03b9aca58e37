"""Draw a real run in the terminal: two nodes train, one worker is killed with SIGKILL on the way.

docs/images/run.svg is what it shows after that, docs/images/recording.svg its whole life, in a loop.

python hack/picture.py
"""

import asyncio
import io
import json
import os
import re
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from torchyard.cli.commands import foreground
from torchyard.cli.views import terminal
from torchyard.cli.views.live import render
from torchyard.cli.views.snapshot import Snapshot
from torchyard.client.files import job_of
from torchyard.client.start import RequestedJob, start
from torchyard.local.run import RunFolder

ROOT = Path(__file__).resolve().parent.parent
TARGET, RECORDING = ROOT / "docs/images/run.svg", ROOT / "docs/images/recording.svg"
KILL_PERCENT, DRAW_PERCENT = 40.0, 80.0
WIDTH, HEIGHT = 100, 40
TITLE = "torchyard run examples/cvrp.yaml"
FRAMES, SECONDS, LAST_SECONDS = 24, 0.8, 4.0
"""Frames of the recording at most, how long each is shown, and how long the last one is."""


class Artist:
    """A view that kills a worker at one point of the run and draws at a later one."""

    def __init__(self, folder: RunFolder) -> None:
        """Draw the run in `folder`."""
        self.folder = folder
        self.drawn = False
        self.frames: list[str] = []
        self._shown: tuple[object, ...] = ()

    def show(self, snapshot: Snapshot) -> None:
        """Look at the run, as the terminal's view does."""
        percent, round_number = snapshot.job.status.progress.percent or 0.0, snapshot.job.status.round
        if percent >= KILL_PERCENT and round_number == 1 and snapshot.job.status.state == "Running":
            file = next(self.folder.pods.glob("*-1/run/workers.json"))
            os.kill(int(next(iter(json.loads(file.read_text())["pids"].values()))), signal.SIGKILL)
        shown = (snapshot.job.status.state, round_number, snapshot.job.status.progress.step)
        if shown != self._shown:
            self.frames.append(drawing(snapshot, f"frame{len(self.frames)}"))
            self._shown = shown
        if percent >= DRAW_PERCENT and round_number > 1 and not self.drawn:
            TARGET.write_text(drawing(snapshot, "run"), encoding="utf-8")
            self.drawn = True

    def close(self, snapshot: Snapshot | None) -> None:
        """Nothing is held."""


def drawing(snapshot: Snapshot, name: str) -> str:
    """Return the terminal as SVG without fonts from the network: any monospace font will do, each text has its length.

    Args:
        snapshot: what the terminal shows.
        name: prefix of classes and identifiers, of one drawing of a page each.
    """
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(render(snapshot, WIDTH, HEIGHT))
    svg = console.export_svg(title=TITLE, unique_id=name)
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")


def animated(frames: Sequence[str]) -> str:
    """Return one SVG that shows drawings one after the other, in a loop; the last one alone if readers want no motion.

    Args:
        frames: drawings of different names; at most `FRAMES` of them are taken, evenly, with the first and the last.
    """
    count = min(FRAMES, len(frames))
    chosen = [frames[round(number * (len(frames) - 1) / max(count - 1, 1))] for number in range(count)]
    total = SECONDS * (count - 1) + LAST_SECONDS
    sizes = [re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', frame) for frame in chosen]
    width, height = (max(float(size[axis]) for size in sizes if size) for axis in (1, 2))
    rules, drawings = [], []
    for number, frame in enumerate(chosen):
        begin, end = (100 * SECONDS * place / total for place in (number, number + 1))
        until = "" if number == count - 1 else f" {end:.3f}% {{visibility: hidden}}"
        before = "0% {visibility: hidden} " if number else ""
        rules += [f"@keyframes show{number} {{{before}{begin:.3f}% {{visibility: visible}}{until}}}"]
        rules += [f"#shown{number} {{visibility: hidden; animation: show{number} {total}s step-end infinite}}"]
        size = sizes[number]
        sized = frame.replace("<svg ", f'<svg width="{size[1]}" height="{size[2]}" ', 1) if size else frame
        drawings += [f'<g id="shown{number}">{sized}</g>']
    still = f"g {{animation: none !important}} #shown{count - 1} {{visibility: visible}}"
    style = "\n".join([*rules, f"@media (prefers-reduced-motion: reduce) {{{still}}}"])
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
    return "\n".join([head, f"<style>{style}</style>", *drawings, "</svg>", ""])


def main() -> None:
    """Run the example and draw it."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["TORCHYARD_HOME"] = home
        example = ROOT / "examples/cvrp.yaml"
        folder = start(RequestedJob(job_of(example, ()), example.parent, str(example), is_file=True))
        artist = Artist(folder)
        terminal.view_for_this_terminal = lambda: artist
        job = asyncio.run(foreground.Watching(folder).until_over())
        RECORDING.write_text(animated(artist.frames), encoding="utf-8")
    pictures = " and ".join(str(each.relative_to(ROOT)) for each in (TARGET, RECORDING))
    print(f"{pictures}: {job.status.state}, {job.status.restarts.total} restart")


if __name__ == "__main__":
    main()
