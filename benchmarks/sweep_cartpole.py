"""How soon CartPole is solved with the parameters that a sweep finds, and with the defaults.

    python benchmarks/sweep_cartpole.py [TRIALS] [SEEDS]

Runs `examples/sweep-cartpole.yaml`, then the job of its best trial and the defaults with seeds that the sweep has not
seen. A run ends when 20 greedy episodes have a mean return of 475. Environment steps are counted, and processor time
of the command and all processes that it waited for: a busy machine changes wall time.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "torchyard.cli.main"]
SOLVED = 475.0
DEFAULTS = {"environmentSteps": 500_000, "epochs": 4, "minibatches": 4, "horizon": 64, "environments": 128}
"""Of `preset: tiny`, see docs/reference/vecrl.md: how many steps a rollout has, and updates it brings."""


def main(trials: int, seeds: int) -> None:
    """Print what the sweep took, and how soon each job is solved."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHYARD_HOME"] = str(Path(folder) / "home")
        file = ROOT / "examples/sweep-cartpole.yaml"
        wall, processor = spent([*COMMAND, "run", str(file), "--set", f"maxTrials={trials}"])
        found = json.loads(output([*COMMAND, "sweep", "show", "cartpole", "-o", "json"]))["trials"]
        outcomes = [trial["outcome"] for trial in found]
        counts = ", ".join(f"{outcomes.count(each)} {each}" for each in ("complete", "stopped", "failed"))
        solved = [trial["number"] for trial in found if trial["outcome"] == "complete" and trial["value"] >= SOLVED]
        print(f"sweep: {len(found)} trials ({counts}), {wall:.0f} s, processor {processor:.0f} s", flush=True)
        print(f"trials with a return of {SOLVED:.0f} at their end: {solved}", flush=True)
        best = yaml.safe_load(output([*COMMAND, "sweep", "best", "cartpole", "-o", "yaml"]))["spec"]
        print(f"best: {json.dumps(best['trainer']['params'])}", flush=True)
        default = {"trainer": {"name": "vecrl", "params": {"environment": "cartpole"}}}
        for name, spec in (("best", best), ("defaults", default)):
            took = [
                until_solved(Path(folder), f"{name}-{seed}", with_seed(spec, seed)) for seed in range(11, 11 + seeds)
            ]
            for steps, seconds in took:
                print(f"{name}: solved after {steps} environment steps, processor {seconds:.1f} s", flush=True)
            known = [(steps, seconds) for steps, seconds in took if steps is not None]
            if known:
                steps, seconds = (statistics.median(each) for each in zip(*known, strict=True))
                print(f"{name}: {len(known)} of {seeds} solved; medians {steps:,.0f} steps, processor {seconds:.1f} s")


def with_seed(spec: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return a job of vecrl with a seed, evaluated after every rollout, with as many steps as the defaults have."""
    params = {**spec["trainer"]["params"], "seed": seed, "evalEvery": 1, "evalEpisodes": 20}
    params["environmentSteps"] = DEFAULTS["environmentSteps"]
    trainer = {**spec["trainer"], "params": params}
    return {"trainer": trainer, "metrics": {"interval": "1s"}, "launcher": {"warmStart": False}}


def until_solved(folder: Path, name: str, spec: dict[str, Any]) -> tuple[int | None, float]:
    """Run a job until it is solved; return the environment steps, None: never, and the processor time in seconds."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"metadata": {"name": name}, "spec": spec}))
    _, seconds = spent([sys.executable, __file__, "--until-solved", str(file)])
    params = {**DEFAULTS, **spec["trainer"]["params"]}
    step = json.loads(file.with_suffix(".step").read_text())
    if step is None:
        return None, seconds
    rollouts = step // (params["epochs"] * params["minibatches"])  # it is evaluated after each
    return rollouts * params["horizon"] * params["environments"], seconds


def run_until_solved(file: Path) -> None:
    """Run the job of a file, stop it once it is solved, and write the optimizer step of that."""
    import torchyard as ty

    job = ty.run(json.loads(file.read_text()), wait=False)
    seen = (status.progress.step for status in job.watch() if status.metrics.get("evalReturn", 0.0) >= SOLVED)
    step = next(seen, None)
    status = job.stop()
    if step is None and status.state != "Succeeded":
        raise SystemExit(f"{file.stem} is {status.state}: {status.message}")
    # The table has the exact step, unless it lacks this evaluation: it has a row a second.
    rows = [int(row["step"]) for row in job.metrics() if row.get("evalReturn", 0.0) >= SOLVED]
    file.with_suffix(".step").write_text(json.dumps(min([*rows, *filter(None, [step])], default=None)))


def output(argv: list[str]) -> str:
    """Return what a command prints."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def spent(argv: list[str]) -> tuple[float, float]:
    """Run a command to its end; return its wall time and the processor time of all processes that it waited for."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - begun, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    if sys.argv[1:2] == ["--until-solved"]:
        run_until_solved(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 50, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
