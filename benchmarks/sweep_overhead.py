"""What a sweep costs beside its trials: the same jobs as a sweep, and one after the other by hand.

    python benchmarks/sweep_overhead.py [TRIALS] [TURNS]

Both take turns. Processor time is compared, of the command and all that it starts: a busy machine changes wall time. A
job does next to nothing, so that the cost of a sweep does not drown in the noise of training; it is shown in seconds
for a trial, and as the share of a trial that computes for a minute.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from spent import spent

COMMAND = [sys.executable, "-m", "torchyard.cli.main"]
MINUTE = 60.0
GRACE = ["30s", "40s", "50s", "60s"]


def main(trials: int, turns: int) -> None:
    """Print the cost of each turn, and the median of a sweep's for a trial."""
    costs = []
    for turn in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TORCHYARD_HOME"] = str(Path(folder) / "home")
            os.environ["OMP_NUM_THREADS"] = "1"
            swept, jobs = sweep(Path(folder), trials, turn)
            by_hand = [run(Path(folder), number, job) for number, job in enumerate(jobs)]
        wall, processor = (sum(each[index] for each in by_hand) for index in (0, 1))
        costs.append((swept[1] - processor) / trials)
        print(
            f"turn {turn + 1}: sweep {swept[0]:.1f} s, processor {swept[1]:.1f} s; "
            f"by hand {wall:.1f} s, processor {processor:.1f} s",
            flush=True,
        )
    cost = statistics.median(costs)
    print(f"{trials} trials: {cost:+.2f} s of processor time for a trial, {100 * cost / MINUTE:+.2f} % of a minute")


def sweep(folder: Path, trials: int, seed: int) -> tuple[tuple[float, float], list[dict[str, Any]]]:
    """Run a sweep, one trial at a time; return its seconds, and the specs of the jobs that its trials were."""
    spec = {
        "objective": {"metric": "score", "goal": "maximize"},
        "algorithm": {"name": "tpe", "seed": seed},
        "parameters": [{"path": "gracePeriod", "choice": GRACE}],
        "maxTrials": trials,
        "jobTemplate": {"spec": job("30s")},
    }
    cost = spent([*COMMAND, "run", str(write(folder / "sweep.yaml", "TrainingSweep", "tune", spec))])
    shown = subprocess.run(
        [*COMMAND, "sweep", "show", "tune", "-o", "json"], capture_output=True, check=True, text=True
    )
    found = [job(trial["parameters"]["gracePeriod"]) for trial in json.loads(shown.stdout)["trials"]]
    assert len(found) == trials
    return cost, found


def job(grace: str) -> dict[str, Any]:
    """Return the spec of a job."""
    metrics = {"patterns": ["score=(?P<score>[0-9.]+)"], "interval": "1s"}
    program = {"command": ["sh", "-c", "echo score=1"], "launcher": {"warmStart": False}}
    return {**program, "metrics": metrics, "gracePeriod": grace}


def run(folder: Path, number: int, spec: dict[str, Any]) -> tuple[float, float]:
    """Run one job; return its seconds."""
    file = write(folder / "job.yaml", "TrainingJob", f"by-hand-{number}", spec)
    return spent([*COMMAND, "run", str(file)])


def write(file: Path, kind: str, name: str, spec: dict[str, Any]) -> Path:
    """Write the file of an object."""
    document = {"apiVersion": "torchyard.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    file.write_text(yaml.safe_dump(document))
    return file


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
