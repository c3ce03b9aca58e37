"""Wall time of `torchyard --help`, Python's own start included: python benchmarks/help_time.py [--runs 20]."""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

LIMIT_MS = 150.0
PROGRAM = str(Path(sys.executable).with_name("torchyard"))
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import typer'": [sys.executable, "-c", "import typer"],
    "torchyard --help": [PROGRAM, "--help"],
    "torchyard run --help": [PROGRAM, "run", "--help"],
    "torchyard ps": [PROGRAM, "ps"],
}


def milliseconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return 1e3 * (time.perf_counter() - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    print(f"{'command':<26}{'median ms':>10}{'best ms':>9}{'worst ms':>10}")
    medians = {}
    for name, command in COMMANDS.items():
        milliseconds(command)  # the first run fills the caches
        times = [milliseconds(command) for _ in range(runs)]
        medians[name] = statistics.median(times)
        print(f"{name:<26}{medians[name]:>10.1f}{min(times):>9.1f}{max(times):>10.1f}")
    good = medians["torchyard --help"] <= LIMIT_MS
    print(f"limit of --help: {LIMIT_MS:.0f} ms: {'kept' if good else 'BROKEN'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
