"""What a sweep costs beside its trials: the same jobs as a sweep, and one after the other by hand.

    python benchmarks/sweep_overhead.py [TRIALS] [TURNS]

Both take turns, so that a busy machine slows both; processor time of all processes is compared, and wall time shown.
Jobs by hand are run with the parameters that the sweep chose, so that both train the same.
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

COMMAND = [sys.executable, "-m", "torchyard.cli.main"]
STEPS = 262_144
JOB: dict[str, Any] = {
    "trainer": {"name": "vecrl", "params": {"environment": "cartpole", "environmentSteps": STEPS}},
    "metrics": {"interval": "1s"},
}


def main(trials: int, turns: int) -> None:
    """Print the cost of each turn, and the median of their ratios."""
    ratios: list[tuple[float, float]] = []
    for turn in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TORCHYARD_HOME"] = str(Path(folder) / "home")
            os.environ["OMP_NUM_THREADS"] = "1"
            swept, jobs = sweep(Path(folder), trials, turn)
            by_hand = [run(Path(folder), job) for job in jobs]
        wall, processor = (sum(each[place] for each in by_hand) for place in (0, 1))
        ratios.append((swept[0] / wall, swept[1] / processor))
        print(
            f"turn {turn + 1}: sweep {swept[0]:.1f} s, processor {swept[1]:.1f} s; "
            f"by hand {wall:.1f} s, processor {processor:.1f} s"
        )
    wall, processor = (statistics.median(each[place] for each in ratios) for place in (0, 1))
    print(f"{trials} trials: processor time {100 * (processor - 1):+.2f} %, wall time {100 * (wall - 1):+.2f} %")


def sweep(folder: Path, trials: int, seed: int) -> tuple[tuple[float, float], list[dict[str, Any]]]:
    """Run a sweep, one trial at a time; return its seconds, and the jobs that its trials were."""
    spec = {
        "objective": {"metric": "evalReturn", "goal": "maximize"},
        "algorithm": {"name": "tpe", "seed": seed},
        "parameters": [{"path": "trainer.params.lr", "float": {"min": 0.001, "max": 0.01, "log": True}}],
        "maxTrials": trials,
        "jobTemplate": {"spec": JOB},
    }
    file = write(folder / "sweep.yaml", "TrainingSweep", "tune", spec)
    cost = spent([*COMMAND, "run", str(file)])
    shown = subprocess.run(
        [*COMMAND, "sweep", "show", "tune", "-o", "json"], capture_output=True, check=True, text=True
    )
    jobs = []
    for trial in json.loads(shown.stdout)["trials"]:
        params = {**JOB["trainer"]["params"], "lr": trial["parameters"]["trainer.params.lr"]}
        jobs.append({"name": f"by-hand-{trial['number']}", **JOB, "trainer": {"name": "vecrl", "params": params}})
    assert len(jobs) == trials
    return cost, jobs


def run(folder: Path, job: dict[str, Any]) -> tuple[float, float]:
    """Run one job; return its seconds."""
    spec = {name: value for name, value in job.items() if name != "name"}
    return spent([*COMMAND, "run", str(write(folder / "job.yaml", "TrainingJob", job["name"], spec))])


def write(file: Path, kind: str, name: str, spec: dict[str, Any]) -> Path:
    """Write the file of an object."""
    document = {"apiVersion": "torchyard.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    file.write_text(yaml.safe_dump(document))
    return file


def spent(argv: list[str]) -> tuple[float, float]:
    """Run a command to its end; return its wall time and the processor time of all processes that it waited for."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(argv, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begun, used


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
