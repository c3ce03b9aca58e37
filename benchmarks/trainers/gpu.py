"""What the built-in workloads reach on a GPU, and what CUDA graphs and compilation are worth there.

    python benchmarks/trainers/gpu.py [--only cartpole] [--ways compiled] [--steps 25] [--together 6] [--out FILE.json]
                                      [--device cpu]

Each row is mode `bench` of a job in a process of its own: as it is, with `parallelism.compile` but for CUDA graphs, and
with all of it. Processes start and compile together, `--together` of them, and take turns to be measured while the
others wait. A row tells the workload's own rate, the utilisation of the device (MFU) and the memory that tensors took
at most.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

PROGRAM = """
import sys
from contextlib import nullcontext
import torch
from torchyard_trainers.core.command import main
from torchyard_trainers.core.graphs import eager_mode
from torchyard_trainers.core.modes import bench
from torchyard_trainers.core.report import Reporter

progress = Reporter.progress

def in_turn(self, step, total_steps, epoch=0.0):
    progress(self, step, total_steps, epoch)
    if step == bench.WARM_UP_STEPS:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        print("warm", flush=True)
        sys.stdin.readline()

Reporter.progress = in_turn
graphs = sys.argv.pop(1) == "graphs"
with nullcontext() if graphs else eager_mode(compiled=False):  # what is compiled stays so, and no graphs are made
    sys.exit(main(sys.argv[1:]))
"""


class Row(NamedTuple):
    """A job to measure."""

    name: str
    trainer: str
    params: dict[str, Any]
    unit: int = 1  # things of interest in a step of one environment, or in a sample
    micro: int = 0  # samples of a forward pass; 0: all

    def config(self, steps: int, device: str, folder: Path, *, compiled: bool) -> dict[str, Any]:
        """Return the config of the job; workloads with rollouts count steps in those of their environments."""
        params = {**self.params, "evalEvery": 10_000}
        if "environments" in params:
            rollout = params["environments"] * params.setdefault("horizon", 32)
            params["environmentSteps"] = rollout * max(2, steps // 16)
        else:
            params["steps"] = steps
        if "data" in params:
            params["data"] = [str(written_tokens(folder))]
        return {
            "trainer": {"name": self.trainer, "mode": "bench", "params": params},
            "device": device,
            "parallelism": {
                "precision": "bf16" if device == "cuda" else "fp32",
                "compile": compiled,
                "microBatchSize": self.micro or params.get("batch") or params["environments"],
            },
            "logging": {"tensorboard": False},
        }


def written_tokens(folder: Path) -> Path:
    """Write a file of random tokens, enough for a few steps that differ."""
    import numpy as np

    path = folder / "tokens.npy"
    np.save(path, np.random.default_rng(1).integers(0, 150_000, 2**22, dtype=np.uint32))
    return path


ROUTES = {"preset": "cvrp20", "evalInstances": 1000}
FEW = {"evalEpisodes": 8, "evalBatch": 8}
LARGE = {"preset": "large", **FEW}
CARTS = {"preset": "large", "environment": "cartpole"}
SNAKES = {"preset": "large", "environment": "snake", "environments": 4096}
ROLLOUT = {"baseline": "rollout", "baselineEvery": 1000, "baselineInstances": 1024}
QWEN = {"preset": "large", "data": [], "maxLength": 2048, "evalSamples": 16}
GRPO = {"preset": "large", "method": "grpo", "maxNewTokens": 256, "evalSamples": 16}
PALIGEMMA = {"model": "paligemma-3b", "evalSamples": 8}
ROWS = (
    Row("cvrp20, 512 instances, 16 routes each", "cvrp", {**ROUTES, "batch": 512}),
    Row("cvrp20, 4096 instances, 16 routes each", "cvrp", {**ROUTES, "batch": 4096}),
    Row("cvrp20, 4096 instances, rollout baseline", "cvrp", {**ROUTES, **ROLLOUT, "batch": 4096}),
    Row("cvrp100, 256 instances, 16 routes each", "cvrp", {**ROUTES, "preset": "cvrp100", "batch": 256}),
    Row("cartpole, 16384 environments", "vecrl", {**CARTS, "environments": 16_384}),
    Row("cartpole, 65536 environments", "vecrl", {**CARTS, "environments": 65_536}),
    Row("snake 20 x 20, 4 agents, cnn", "vecrl", SNAKES, unit=4),
    Row("vlm qwen2-vl-2b with adapters, 64 environments", "vlm", {**LARGE, "environments": 64, "horizon": 16}),
    Row("vlm tiny, 256 environments", "vlm", {**FEW, "environments": 256, "horizon": 8, "task": "pick_place"}),
    Row("vla pi0, 32 samples", "vla", {**LARGE, "batch": 32, "evalSamples": 8}),
    Row("vla pi0, 64 samples", "vla", {**LARGE, "batch": 64, "evalSamples": 8}),
    Row("vla paligemma-3b with a flow head, 32 samples", "vla", {**LARGE, **PALIGEMMA, "batch": 32}),
    Row("lm qwen3-0.6b, sft, 16 x 2048 tokens", "lm", {**QWEN, "batch": 16}, unit=2048, micro=8),
    Row("lm qwen3-0.6b, sft with adapters, 16 x 2048 tokens", "lm", {**QWEN, "batch": 16, "loraRank": 16}, 2048, 8),
    Row("lm qwen3-0.6b, grpo, 256 x 256 new tokens", "lm", {**GRPO, "batch": 256}, unit=256, micro=32),
    Row("vla tiny, 64 samples", "vla", {**FEW, "batch": 64, "evalSamples": 8}),
)
WAYS = {"as it is": ("graphs", False), "no graphs": ("none", True), "compiled": ("graphs", True)}


class Job:
    """A row in one way, in a process that warms up and then waits for its turn."""

    def __init__(self, row: Row, way: str, options: argparse.Namespace) -> None:
        self.row, self.way, self._limit = row, way, options.limit
        graphs, compiled = WAYS[way]
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        config = row.config(options.steps, options.device, folder, compiled=compiled)
        (folder / "config.json").write_text(json.dumps(config))
        self._log = (folder / "log").open("w+")
        where = ["--config", str(folder / "config.json"), "--checkpoint-dir", str(folder / "run")]
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, graphs, *where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._timer = threading.Timer(options.limit, self._process.kill)
        self._timer.start()

    def warm(self) -> None:
        """Wait until the process may be measured, or has ended."""
        for line in self._process.stdout:
            if line == "warm\n":
                return

    def measure(self) -> dict[str, Any]:
        """Return the process its turn; return its figures, or why there are none."""
        output, _ = self._process.communicate("\n" if self._process.poll() is None else None)
        self._timer.cancel()
        self._log.seek(0)
        log = self._log.read() + output
        self._log.close()
        with self._folder as folder:
            if self._process.returncode < 0:
                return {"fault": f"took more than {self._limit:.0f} s, or was ended", "log": log}
            if self._process.returncode:
                return {"fault": f"exit code {self._process.returncode}: {log.strip().splitlines()[-1:]}", "log": log}
            figures = json.loads((Path(folder) / "run" / "bench.json").read_text())
        found = figures["figures"]
        rate = found.get("envStepsPerSecond", found["samplesPerSecond"]) * self.row.unit
        return {"rate": rate, "figures": found, "environment": figures["environment"]}


def measured(options: argparse.Namespace) -> Iterable[tuple[Job, dict[str, Any]]]:
    """Return each job with what was found."""
    left = iter([(row, way) for row in ROWS if any(each in row.name for each in options.only) for way in options.ways])
    while group := [Job(row, way, options) for row, way in islice(left, options.together)]:
        for job in group:
            job.warm()
        for job in group:
            yield job, job.measure()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose name has one of these in it")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps of a row")
    parser.add_argument("--together", type=int, default=1, help="processes that hold the memory of their row at once")
    parser.add_argument(
        "--limit", type=float, default=600.0, help="seconds of a row: its start, compilation and wait included"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: in fp32, to try the tiny rows")
    parser.add_argument("--out", type=Path, help="where to write all figures as JSON")
    options = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    print("| | way | a second | ms a step | MFU | GiB of tensors |\n|---|---|---|---|---|---|", flush=True)
    for job, took in measured(options):
        found.setdefault(job.row.name, {})[job.way] = took
        if options.out:
            options.out.write_text(json.dumps(found, indent=1))
        if "fault" in took:
            print(f"| {job.row.name} | {job.way} | {took['fault']} | | | |", flush=True)
            continue
        figures = took["figures"]
        mfu = f"{figures['mfu']:.2%}" if "mfu" in figures else "-"
        print(
            f"| {job.row.name} | {job.way} | {took['rate']:,.0f} | {1000 * figures['stepSeconds']:.1f} | {mfu} "
            f"| {figures['memoryPeakBytes'] / 2**30:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
