"""Wall time of `torchyard --help` and of `ps` with three runs, Python's own start included.

python benchmarks/help_time.py [--runs 20]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from torchyard.api.resource import read_job
from torchyard.api.status import State, TrainingJobStatus
from torchyard.local.run import run_folder, write_status_file
from torchyard.local.runs import create_run

LIMITS_MS = {"torchyard --help": 150.0, "torchyard ps": 80.0}
PROGRAM = str(Path(sys.executable).with_name("torchyard"))
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "torchyard --help": [PROGRAM, "--help"],
    "torchyard run --help": [PROGRAM, "run", "--help"],
    "torchyard ps": [PROGRAM, "ps"],
}


def milliseconds(command: list[str], home: Path) -> float:
    env = {**os.environ, "TORCHYARD_HOME": str(home)}
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
    return 1e3 * (time.perf_counter() - start)


def make_runs(home: Path) -> None:
    for name in ("one", "two", "three"):
        folder = run_folder(name, home)
        job = create_run(folder, read_job({"metadata": {"name": name}, "spec": {"script": "pass"}}), home)
        write_status_file(folder, msgspec.structs.replace(job, status=TrainingJobStatus(state=State("Succeeded"))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    print(f"{'command':<26}{'median ms':>10}{'best ms':>9}{'worst ms':>10}")
    medians = {}
    with tempfile.TemporaryDirectory() as home:
        make_runs(Path(home))
        for name, command in COMMANDS.items():
            milliseconds(command, Path(home))  # the first run fills the caches
            times = [milliseconds(command, Path(home)) for _ in range(runs)]
            medians[name] = statistics.median(times)
            print(f"{name:<26}{medians[name]:>10.1f}{min(times):>9.1f}{max(times):>10.1f}")
    broken = [name for name, limit in LIMITS_MS.items() if medians[name] > limit]
    for name, limit in LIMITS_MS.items():
        print(f"limit of {name}: {limit:.0f} ms: {'BROKEN' if name in broken else 'kept'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
