"""How long `import torchyard` takes, and the first use of its names: the median of several fresh interpreters.

python benchmarks/import_time.py [RUNS]
"""

import statistics
import subprocess
import sys

CASES = {
    "import torchyard": "import torchyard",
    "from torchyard import TrainingJob": "from torchyard import TrainingJob",
    "from torchyard import run, submit": "from torchyard import run, submit",
}
PROBE = "import time; begun = time.perf_counter(); {}; print(1000 * (time.perf_counter() - begun))"


def milliseconds(source: str) -> float:
    done = subprocess.run([sys.executable, "-c", PROBE.format(source)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    for name, source in CASES.items():
        print(f"{name:<36} {statistics.median(milliseconds(source) for _ in range(runs)):7.1f} ms")


if __name__ == "__main__":
    main()
