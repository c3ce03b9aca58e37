"""Samples per second of behaviour cloning: `vla`, and LeRobot's training loop, on the same dataset and tiny pi0.

    python benchmarks/trainers/vla.py --peer PYTHON [--rounds N] [--steps N] [--batch N]

PYTHON is that of an environment with lerobot 0.4.4, and with torch and transformers of the versions of this one:

    uv venv peer && uv pip install --python peer/bin/python --no-deps lerobot==0.4.4 draccus==0.10.0 ...
    echo $PWD/.venv/lib/python3.11/site-packages > peer/lib/python3.11/site-packages/ours.pth

Both read images from Parquet in two worker processes, fp32, one thread, and take turns, so that a busy machine slows
both. LeRobot's part is its dataset, its loader and its `update_policy`; the model and loss are those of transformers.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHUNK = 4
SIDES = ("vla", "LeRobot")
KINDS = {"seconds": "by the clock", "processor": "of processor time"}  # the second one depends least on other work


def main() -> None:
    """Run both in turns and print what each reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="python with lerobot")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--ours", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours is not None:
        ours(options.ours, options.batch)
        return
    if options.peer is None:
        parser.error("--peer: name the python of an environment with lerobot 0.4.4")
    from sides import Side

    os.environ["PYTHONPATH"] = str(HERE.parents[1] / "trainers")
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        data = f"{folder}/dataset"
        theirs = Side([options.peer, HERE / "vla_peer.py", data, str(options.batch), str(CHUNK)])
        mine = Side([sys.executable, __file__, "--ours", data, "--batch", str(options.batch)])
        pairs = []
        for number in range(options.rounds + 1):
            found = [side.ask(str(options.steps)) for side in (mine, theirs)]
            if number:  # the first one warms up
                pairs.append([{each: side["steps"] * options.batch / side[each] for each in KINDS} for side in found])
                text = ", ".join(f"{name} {rates['seconds']:.0f}" for name, rates in zip(SIDES, pairs[-1], strict=True))
                print(f"round {number}: {text} samples/s", flush=True)
        for side in (mine, theirs):
            side.close()
    for kind, meaning in KINDS.items():
        rates = [[side[kind] for side in pair] for pair in pairs]
        ratios = [first / second for first, second in rates]
        typical = [statistics.median(each) for each in zip(*rates, strict=True)]
        print(
            f"samples per second {meaning}: vla {typical[0]:.0f}, LeRobot {typical[1]:.0f}; ratio "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def ours(data: str, batch: int) -> None:
    """Make as many optimizer steps as each line asks for, as the training loop does."""
    import torch
    from sides import processor_seconds, say

    from torchyard_trainers import registry
    from torchyard_trainers.core.config import Config, Parallelism, Trainer
    from torchyard_trainers.core.optimizers import as_one
    from torchyard_trainers.core.parallel import parallelize
    from torchyard_trainers.core.precision import Precision
    from torchyard_trainers.core.report import Reporter
    from torchyard_trainers.core.step import loader_of, optimize, set_learning_rate
    from torchyard_trainers.core.weights import built, fill
    from torchyard_trainers.core.workload import Session
    from torchyard_trainers.core.world import World

    params = {
        "data": data,
        "batch": batch,
        "chunk": CHUNK,
        "draws": 1,
        "normalization": "mean-std",
        "steps": 100_000,
        "workers": 2,
    }
    work = registry.build(Config(trainer=Trainer(name="vla", params=params)))
    device = torch.device("cpu")
    world, precision = World(0, 1, 0, device, grouped=False, local_size=1), Precision("fp32", device, sharded=False)
    model = built(work)
    parallel = parallelize(
        model,
        work.blocks(model),
        "single",
        settings=Parallelism(),
        precision=precision,
        world=world,
        fill=lambda each: fill(work, each, world),
    )
    session = Session(parallel, precision, world, Reporter(None, rank=0, local_rank=0, round_number=0), None)
    optimizer, step = as_one(work.optimizer(parallel.module)), 0
    with loader_of(work, session) as loader:
        say({"ready": True})
        for line in sys.stdin:
            began, spent = time.perf_counter(), processor_seconds()
            for _ in range(int(line)):
                set_learning_rate(optimizer, work.learning_rate(step))
                optimize(work, session, optimizer, step, {}, data=loader.step(step, None))
                step += 1
            seconds, processor = time.perf_counter() - began, processor_seconds() - spent
            say({"steps": int(line), "seconds": seconds, "processor": processor})


if __name__ == "__main__":
    main()
