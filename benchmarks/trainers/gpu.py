"""What the built-in workloads reach on a GPU, and what CUDA graphs and compilation are worth there.

    python benchmarks/trainers/gpu.py [--only cartpole] [--steps 60] [--out FILE.json] [--device cpu]

Each row is mode `bench` of a job in a process of its own: as it is, with `parallelism.compile` but for CUDA graphs, and
with all of it. A row tells the workload's own rate, the utilisation of the device (MFU) and the memory that tensors
took at most.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

PROGRAM = """
import sys
from torchyard_trainers.core.command import main
from torchyard_trainers.core.graphs import eager_mode
with eager_mode(compiled=False):  # what is compiled stays so, and no graphs are made
    sys.exit(main(sys.argv[1:]))
"""


class Row(NamedTuple):
    """A job to measure."""

    name: str
    trainer: str
    params: dict[str, Any]
    unit: int = 1  # things of interest in a step of one environment, or in a sample

    def config(self, steps: int, device: str, *, compiled: bool) -> dict[str, Any]:
        """Return the config of the job; workloads with rollouts count steps in those of their environments."""
        params = {**self.params, "evalEvery": 10_000}
        if "environments" in params:
            rollout = params["environments"] * params.setdefault("horizon", 32)
            params["environmentSteps"] = rollout * max(2, steps // 16)
        else:
            params["steps"] = steps
        return {
            "trainer": {"name": self.trainer, "mode": "bench", "params": params},
            "device": device,
            "parallelism": {
                "precision": "bf16" if device == "cuda" else "fp32",
                "compile": compiled,
                "microBatchSize": params.get("batch") or params["environments"],
            },
            "logging": {"tensorboard": False},
        }


ROUTES = {"preset": "cvrp20", "evalInstances": 1000}
FEW = {"evalEpisodes": 8, "evalBatch": 8}
LARGE = {"preset": "large", **FEW}
CARTS = {"preset": "large", "environment": "cartpole"}
SNAKES = {"preset": "large", "environment": "snake", "environments": 4096}
ROLLOUT = {"baseline": "rollout", "baselineEvery": 1000, "baselineInstances": 1024}
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
    Row("vla paligemma-3b with a flow head, 32 samples", "vla", {**LARGE, **PALIGEMMA, "batch": 32}),
    Row("vla tiny, 64 samples", "vla", {**FEW, "batch": 64, "evalSamples": 8}),
)
ALL = ("-m", "torchyard_trainers")
WAYS = {"as it is": (ALL, False), "no graphs": (("-c", PROGRAM), True), "compiled": (ALL, True)}


def measure(row: Row, way: str, steps: int, limit: float, device: str) -> dict[str, Any]:
    """Run one job; return its figures, or why there are none."""
    program, compiled = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(row.config(steps, device, compiled=compiled)))
        where = ["--config", str(file), "--checkpoint-dir", f"{folder}/run"]
        try:
            done = subprocess.run(
                [sys.executable, *program, *where],
                check=False,
                capture_output=True,
                text=True,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return {"fault": f"took more than {limit:.0f} s"}
        if done.returncode:
            return {
                "fault": f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}",
                "log": done.stderr,
            }
        figures = json.loads((Path(folder) / "run" / "bench.json").read_text())
    found = figures["figures"]
    rate = found.get("envStepsPerSecond", found["samplesPerSecond"]) * row.unit
    return {"rate": rate, "figures": found, "environment": figures["environment"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps of a row")
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds of a row, its start and compilation included"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: in fp32, to try the tiny rows")
    parser.add_argument("--out", type=Path, help="where to write all figures as JSON")
    options = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    print("| | way | a second | ms a step | MFU | GiB of tensors |\n|---|---|---|---|---|---|")
    for row in (each for each in ROWS if options.only in each.name):
        for way in options.ways:
            took = found.setdefault(row.name, {})[way] = measure(row, way, options.steps, options.limit, options.device)
            if options.out:
                options.out.write_text(json.dumps(found, indent=1))
            if "fault" in took:
                print(f"| {row.name} | {way} | {took['fault']} | | | |", flush=True)
                continue
            figures = took["figures"]
            mfu = f"{figures['mfu']:.2%}" if "mfu" in figures else "-"
            print(
                f"| {row.name} | {way} | {took['rate']:,.0f} | {1000 * figures['stepSeconds']:.1f} | {mfu} "
                f"| {figures['memoryPeakBytes'] / 2**30:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
