"""What saving costs training: how long the loop stands still for a save, and how much slower steps are beside one.

    python benchmarks/trainers/stall.py [--saves 5] [--width 384 768] [--every 8]

Our loop trains the language model of `lm_workload.py` on one rank and saves model and optimizer every few steps.
`stall` is the cost of a save in the report: from the last step before it until the copy is made. `slower` is what the
steps took that were made while the thread wrote, beyond the median of those that were made without. It does not wait
five minutes: the share is what one save costs over 300 s, since a save costs the same whenever it comes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from lm_workload import Lm, Sizes

INTERVAL_SECONDS = 300.0


def train(options: argparse.Namespace) -> None:
    """Train with saves; print what each step and each save took."""
    from torchyard_trainers import registry
    from torchyard_trainers.core import worker
    from torchyard_trainers.core.command import main as command
    from torchyard_trainers.core.report import Reporter

    ends: list[float] = []
    saves: list[dict[str, Any]] = []

    class Timed(Lm):
        def after_step(self, *_: Any) -> dict[str, float]:
            ends.append(time.time())
            return {}

    class Heard(Reporter):
        def checkpoint(self, values: Any) -> None:
            saves.append(dict(values))
            super().checkpoint(values)

    steps = options.every * (options.saves + 1)
    sizes = Sizes(width=options.width[0], layers=options.layers, length=64, batch=options.batch, steps=steps)
    registry.check = lambda _: None
    registry.build = lambda _: Timed(sizes)
    worker.Reporter = Heard
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        config = {
            "trainer": {"name": "lm"},
            "device": options.device,
            "checkpoint": {"interval": {"steps": options.every}, "keepLast": 1},
            "logging": {"tensorboard": False},
        }
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        if code := command(["--config", str(file), "--checkpoint-dir", f"{folder}/checkpoints"]):
            sys.exit(code)
    sys.__stdout__.write(json.dumps({"ends": ends, "saves": saves}) + "\n")


def cost(ends: list[float], saves: list[dict[str, Any]]) -> dict[str, float]:
    """Return bytes, and seconds of a save: writing, standing still, and of steps that were slower beside it."""
    steps = [(before, after, after - before) for before, after in pairwise(ends)]
    counted = saves[1:-1]  # the first one makes buffers, the last one is waited for
    windows = [(save["time"] - save["saveSeconds"] - save["stallSeconds"], save["time"]) for save in saves]
    beside = [each for each in steps if any(each[0] < end and each[1] > start for start, end in windows)]
    usual = statistics.median(each[2] for each in steps if each not in beside)
    stall = statistics.median(save["stallSeconds"] for save in counted)
    slower = sum(each[2] - usual for each in beside) / len(windows) - stall
    return {
        "bytes": counted[0]["bytes"],
        "step": usual,
        "save": statistics.median(save["saveSeconds"] for save in counted),
        "stall": stall,
        "slower": max(0.0, slower),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--every", type=int, default=8, help="steps between two saves")
    parser.add_argument("--width", type=int, nargs="+", default=[384, 768], help="of each model; multiples of 64")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dir", type=Path, help="where checkpoints go; default: the folder for temporary files")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        train(options)
        return
    head = ("MB", "s a step", "s to save", "s stalled", "s slower", "stall of 300 s", "all of 300 s")
    print(f"{'width':<6}" + "".join(f"{name:>15}" for name in head))
    for width in options.width:
        command = [sys.executable, "-W", "ignore", __file__, *sys.argv[1:], "--width", str(width), "--inside"]
        env = {"OMP_NUM_THREADS": "1"} | os.environ
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout.splitlines()[-1]
        found = cost(**json.loads(told))
        shares = [found["stall"], found["stall"] + found["slower"]]
        row = [f"{found['bytes'] / 1e6:.1f}", *(f"{found[name]:.3f}" for name in ("step", "save", "stall", "slower"))]
        row += [f"{share / INTERVAL_SECONDS:.4%}" for share in shares]
        print(f"{width:<6}" + "".join(f"{each:>15}" for each in row), flush=True)


if __name__ == "__main__":
    main()
