"""Edit of one line to the first optimizer step of the new code, on this machine: `torchyard run --watch`.

    python benchmarks/edit_to_step.py [EDITS] [NODES]

Beside it the way without it: the run is stopped with Ctrl-C and started again by hand, each time as a new process.
Prints median, p95 and largest seconds of each way. Everything is real: the command line, agents, torch, gloo.
"""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_SECONDS = 300.0  # ends only what hangs
TORCHYARD = Path(sys.executable).with_name("torchyard")
PROGRAM = """
import os, pathlib, time, torch, torch.distributed as dist
from model import VALUE
dist.init_process_group("gloo")
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(layer.parameters())
loss = layer(torch.ones(1, 8)).sum()
loss.backward()
optimizer.step()
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    marks = pathlib.Path(os.environ["MARKS"])
    (marks / "new").write_text(repr(time.time()))
    (marks / "new").rename(marks / str(VALUE))
time.sleep(900)
"""


class Bed:
    """A project, a home for its runs, and the folder in which a program leaves the time of its first step."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.project, self.marks = folder / "project", folder / "marks"
        for each in (self.project, self.marks):
            each.mkdir()
        (self.project / "train.py").write_text(PROGRAM)
        self.env = {**os.environ, "TORCHYARD_HOME": str(folder / "home"), "MARKS": str(self.marks)}
        self.env["OMP_NUM_THREADS"] = "1"
        self.words = ["run", "train.py", "--code", ".", "--nodes", str(nodes), "--quiet"]

    def edit(self, value: int) -> float:
        """Write another value into the module; return the time of the edit."""
        (self.project / "model.py").write_text(f"VALUE = {value}\n")
        return time.time()

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Start the command."""
        return subprocess.Popen(
            [TORCHYARD, *self.words, *more],
            cwd=self.project,
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def first_step(self, value: int) -> float:
        """Return the time of the first step of the code with this value."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not (self.marks / str(value)).exists():
            if time.monotonic() > end:
                sys.exit(f"no step of the code with value {value}")
            time.sleep(0.005)
        return float((self.marks / str(value)).read_text())


def watched(bed: Bed, edits: int) -> list[float]:
    """Return the seconds from each edit to the first step while `torchyard run --watch` runs."""
    bed.edit(0)
    running = bed.start("--watch")
    bed.first_step(0)
    seconds = []
    for value in range(1, edits + 1):
        edited = bed.edit(value)
        seconds.append(bed.first_step(value) - edited)
    ended(running)
    return seconds


def by_hand(bed: Bed, edits: int) -> list[float]:
    """Return the same where the command is stopped and started again for each edit."""
    running = None
    seconds = []
    for value in range(1000, 1000 + edits):
        edited = bed.edit(value)
        if running is not None:
            ended(running)
        running = bed.start()
        seconds.append(bed.first_step(value) - edited)
    if running is not None:
        ended(running)
    return seconds


def ended(running: subprocess.Popen[bytes]) -> None:
    """Stop the command and wait for its end."""
    running.send_signal(signal.SIGINT)
    running.wait(DEADLINE_SECONDS)


def main(edits: int = 20, nodes: int = 2) -> None:
    """Measure both ways and print the table."""
    ways: dict[str, Callable[[Bed, int], list[float]]] = {"run --watch": watched, "stop and run again": by_hand}
    print(f"{edits} edits, {nodes} nodes, load {os.getloadavg()[0]:.1f}\n{'':20} median    p95    max")
    for name, measure in ways.items():
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            found = sorted(measure(Bed(folder, nodes), edits))
        p95 = found[min(len(found) - 1, round(0.95 * (len(found) - 1)))]
        print(f"{name:20} {statistics.median(found):6.2f} {p95:6.2f} {found[-1]:6.2f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
