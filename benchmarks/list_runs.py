"""Processor time of `torchyard ps` with many finished runs, without and with its cache.

python benchmarks/list_runs.py [--runs 1000]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from torchyard.api.resource import read_job
from torchyard.api.status import Attempt, Cause, Progress, State, TrainingJobStatus
from torchyard.api.values import Time
from torchyard.local.run import run_folder, write_status_file
from torchyard.local.runs import create_run

LIMIT_SECONDS = 0.3
PROGRAM = str(Path(sys.executable).with_name("torchyard"))


def make(home: Path, number: int) -> None:
    name, now = f"run-{number:05}", time.time()
    job = create_run(
        run_folder(name, home), read_job({"metadata": {"name": name}, "spec": {"trainer": {"name": "cvrp"}}}), home
    )
    failed = Attempt(
        round=1, start_time=Time.of(now), cause=Cause(rank=0, pod=f"{name}-0-1", lines=["a line of a log"] * 20)
    )
    status = TrainingJobStatus(
        state=State.SUCCEEDED, round=2, attempts=[failed, Attempt(round=2)], start_time=Time.of(now - 500),
        completion_time=Time.of(now), progress=Progress(step=1000, total_steps=1000),
        metrics={f"metric{index}": index / 7 for index in range(20)},
    )  # fmt: skip
    write_status_file(run_folder(name, home), msgspec.structs.replace(job, status=status))


def seconds(home: Path) -> float:
    before = os.times()
    environment = {**os.environ, "TORCHYARD_HOME": str(home)}
    subprocess.run([PROGRAM, "ps"], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for number in range(runs):
            make(home, number)
        cold = seconds(home)
        warm = min(seconds(home) for _ in range(5))
    print(f"ps of {runs:,} runs: {cold:.2f} s of processor without the cache, {warm:.2f} s with it")
    return int(warm > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
