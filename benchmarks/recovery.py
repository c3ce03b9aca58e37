"""A whole job on this machine: start to first step, and `kill -9` of a rank to the next step, warm and cold.

    python benchmarks/recovery.py [REPEATS]

Two ranks train a small DDP model that checkpoints every step. Everything is real: `torchyard run`, the agent, the
launcher of torchrun, gloo. Warm, cold (`launcher.warmStart: false`) and plain torchrun take turns in one run, so that a
busy machine slows all of them. Prints medians in seconds and ratios.

Warm jobs are killed at the twentieth step, and ten seconds after the first one. The warm process imports
`torch._dynamo` once a rank has made a step; a round that begins earlier waits for that.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

BIN = Path(sys.executable).parent
STEPS_BEFORE_KILL = 20
SETTLED_SECONDS = 10.0
DEADLINE_SECONDS = 180.0
PROGRAM = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
saved, trace = os.environ["BENCH_SAVED"], os.environ["BENCH_TRACE"]
first = 0
if os.path.exists(saved):
    state = torch.load(saved, weights_only=True)
    model.load_state_dict(state["model"])
    first = state["step"]
for step in range(first, 100_000):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "step": step + 1}, saved + ".new")
        os.replace(saved + ".new", saved)
        with open(trace, "a") as file:
            file.write(f"{os.getpid()} {time.time()}\\n")
    dist.barrier()
"""


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    starts: dict[str, list[float]] = {"plain torchrun": []}
    kills: dict[str, list[float]] = {"warm": [], "warm, killed later": [], "cold": []}
    for _ in range(repeats):
        for kind in ("warm", "warm, killed later", "cold"):
            start, kill = job(warm=kind != "cold", settled=kind == "warm, killed later")
            starts.setdefault(kind, []).append(start)
            kills[kind].append(kill)
        starts["plain torchrun"].append(plain())
    table = Table(title=f"two CPU ranks, {repeats} runs each, medians in seconds", title_justify="left")
    for column in ("", "start to first step", "/ plain", "kill -9 to next step", "/ plain start"):
        table.add_column(column, justify="left" if not column else "right")
    base = statistics.median(starts["plain torchrun"])
    for kind, values in starts.items():
        middle = statistics.median(values)
        recovery = statistics.median(kills[kind]) if kind in kills else None
        shown = ["", ""] if recovery is None else [f"{recovery:.2f}", f"{recovery / base:.2f}"]
        table.add_row(kind, f"{middle:.2f}", f"{middle / base:.2f}", *shown)
    Console().print(table)


def job(*, warm: bool, settled: bool) -> tuple[float, float]:
    """Run a job, kill its rank 1 once, kill it all; return seconds to the first step, and from the kill to the next.

    Args:
        warm: whether workers are forked from a process that has imported torch.
        settled: kill rank 1 only `SETTLED_SECONDS` after the first step.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = folder / "trace"
        file = folder / "job.yaml"
        file.write_text(yaml.safe_dump(document(folder, trace, warm=warm)))
        env = {**os.environ, "TORCHYARD_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
        began = time.time()
        with (folder / "out").open("w") as out:
            run = subprocess.Popen([BIN / "torchyard", "run", file], env=env, stdout=out, stderr=out)
        try:
            wait(lambda: len(steps(trace)) >= STEPS_BEFORE_KILL, run, folder / "out")
            begun = steps(trace)[0][1]
            first = begun - began
            if settled:
                wait(lambda: time.time() >= begun + SETTLED_SECONDS, run, folder / "out")
            leader = steps(trace)[-1][0]
            killed = time.time()
            os.kill(other_rank(folder / "home"), signal.SIGKILL)
            wait(lambda: any(pid != leader for pid, _ in steps(trace)), run, folder / "out")
            resumed = next(moment for pid, moment in steps(trace) if pid != leader)
            return first, resumed - killed
        finally:
            subprocess.run([BIN / "torchyard", "rm", "--force", "bench"], check=False, env=env, capture_output=True)
            run.wait(60)


def plain() -> float:
    """Seconds from the start of plain torchrun to the first step of the same program."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = folder / "trace"
        script = folder / "train.py"
        script.write_text(PROGRAM)
        env = {**os.environ, **variables(folder, trace), "OMP_NUM_THREADS": "1"}
        began = time.time()
        with (folder / "out").open("w") as out:
            command = [BIN / "torchrun", "--standalone", "--nproc-per-node=2", script]
            run = subprocess.Popen(command, env=env, stdout=out, stderr=out)
        try:
            wait(lambda: bool(steps(trace)), run, folder / "out")
            return steps(trace)[0][1] - began
        finally:
            run.terminate()
            run.wait(60)


def document(folder: Path, trace: Path, *, warm: bool) -> dict[str, Any]:
    env = [{"name": name, "value": value} for name, value in variables(folder, trace).items()]
    return {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "bench"},
        "spec": {"script": PROGRAM, "procsPerNode": 2, "env": env, "launcher": {"warmStart": warm}},
    }


def variables(folder: Path, trace: Path) -> dict[str, str]:
    return {"BENCH_SAVED": str(folder / "saved.pt"), "BENCH_TRACE": str(trace)}


def steps(trace: Path) -> list[tuple[int, float]]:
    """Process and time of every step so far; a line that is still being written is none."""
    if not trace.exists():
        return []
    lines = trace.read_text().split("\n")[:-1]
    return [(int(pid), float(moment)) for pid, moment in map(str.split, lines)]


def other_rank(home: Path) -> int:
    """The process of rank 1."""
    (found,) = home.glob("runs/bench/pods/*/run/workers.json")
    return int(json.loads(found.read_text())["pids"]["1"])


def wait(done: Callable[[], bool], process: subprocess.Popen[bytes], out: Path) -> None:
    """Poll until it is so; what is measured carries its own time stamps."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"it never got there (exit code {process.returncode}):\n{out.read_text()[-2000:]}")
        time.sleep(0.01)


if __name__ == "__main__":
    main()
