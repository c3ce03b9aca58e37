"""False alarms: short clean runs of the five workloads, with drawn seeds, in which nothing may be named or rolled back.

    OMP_NUM_THREADS=1 nice python benchmarks/clean_runs.py [--runs 100] [--first 0] [--draw TEXT] [--raw FILE]

Each is a whole `torchyard run` of two ranks with `health.spikes: rollback`. Counts steps, runs whose ranks were
compared (after half a minute of steps), and every warning of a slow rank, a slow gang, a spike or a roll-back. Raw
data is one JSON line a run, appended at once: an interrupted series continues with `--first`. Exits with 1 if there
is an alarm, or if a run does not succeed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.learning import drawn_seeds

TORCHYARD = Path(sys.executable).parent / "torchyard"
WORKLOADS: dict[str, dict[str, Any]] = {
    "cvrp": {"steps": 120},
    "lm": {"steps": 120},
    "vla": {"steps": 120},
    "vecrl": {"environment": "snake", "environmentSteps": 24_000},
    "vlm": {"environmentSteps": 8_000},
}
# What names a rank, a gang or a step in a warning of the status.
ALARMS = ("is slower than", "steps take longer", "spike", "rolled back", "weights of rank", "other loss")
DEADLINE_SECONDS = 1800.0


class Result(NamedTuple):
    """One run. `ranks`: that were compared at its end; `alarms`: warnings, and steps without an update."""

    run: int
    workload: str
    seed: int
    state: str
    steps: int
    ranks: int
    rounds: int
    alarms: list[str]


def main(words: Sequence[str]) -> int:
    """Run the workloads in turn; print a row for each of them."""
    options = parse(words)
    console = Console(stderr=True)
    seeds = drawn_seeds(options.draw, options.first + options.runs)
    results = []
    # One folder for all: runs share the process that has imported torch.
    with tempfile.TemporaryDirectory() as home:
        for number in range(options.first, options.first + options.runs):
            workload = list(WORKLOADS)[number % len(WORKLOADS)]
            result = run(number, workload, seeds[number], Path(home))
            results.append(result)
            line = json.dumps(result._asdict())
            console.print(line, soft_wrap=True, highlight=False)
            if options.raw is not None:
                with options.raw.open("a") as file:
                    file.write(line + "\n")
    show(results)
    return int(any(each.alarms or each.state != "Succeeded" for each in results))


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="number of runs (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one (default: %(default)s)")
    parser.add_argument("--draw", default="clean", help="text that seeds follow from (default: %(default)s)")
    parser.add_argument("--raw", type=Path, help="file that a JSON line is appended to after each run")
    return parser.parse_args(words)


def run(number: int, workload: str, seed: int, home: Path) -> Result:
    """Run one job under `home` and read what its status says."""
    name = f"clean-{number}"
    file = home / "job.yaml"
    file.write_text(yaml.safe_dump(document(name, workload, seed)))
    env = {**os.environ, "TORCHYARD_HOME": str(home), "OMP_NUM_THREADS": "1"}
    subprocess.run([TORCHYARD, "run", file], env=env, capture_output=True, timeout=DEADLINE_SECONDS, check=False)
    status_of = [TORCHYARD, "status", name, "-o", "json"]
    shown = subprocess.run(status_of, env=env, capture_output=True, text=True, check=False)
    subprocess.run([TORCHYARD, "rm", name], env=env, capture_output=True, check=False)
    if not shown.stdout:
        raise SystemExit(shown.stderr)
    status = json.loads(shown.stdout)["status"]
    alarms = [text for text in status.get("warnings", []) if any(words in text for words in ALARMS)]
    skipped = status.get("metrics", {}).get("skippedSteps")
    alarms += [f"skippedSteps {skipped}"] if skipped else []
    return Result(
        run=number,
        workload=workload,
        seed=seed,
        state=status["state"],
        steps=status.get("progress", {}).get("step", 0),
        ranks=status.get("pace", {}).get("ranks", 0),
        rounds=status.get("round", 0),
        alarms=alarms,
    )


def document(name: str, workload: str, seed: int) -> dict[str, Any]:
    """Return the job file of one run."""
    params = {**WORKLOADS[workload], "seed": seed, "evalEvery": 10**6}
    return {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "trainer": {"name": workload, "params": params},
            "device": "cpu",
            "procsPerNode": 2,
            "metrics": {"interval": "1s"},
            "health": {"spikes": "rollback"},
        },
    }


def show(results: Sequence[Result]) -> None:
    """Print a row for each workload, and the sum."""
    table = Table(title=f"{len(results)} clean runs of two ranks", title_justify="left")
    for column in ("workload", "runs", "succeeded", "steps", "ranks compared in", "false alarms"):
        table.add_column(column, justify="right" if table.columns else "left")
    for workload in (*WORKLOADS, "all"):
        some = [each for each in results if workload in {each.workload, "all"}]
        succeeded = sum(each.state == "Succeeded" for each in some)
        figures = (len(some), succeeded, sum(each.steps for each in some), sum(each.ranks > 1 for each in some))
        table.add_row(workload, *(f"{value:,}" for value in figures), str(sum(len(each.alarms) for each in some)))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
