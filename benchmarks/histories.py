"""Processor time and peak memory of reading the curves of a long run.

python benchmarks/histories.py [--rows 1000000] [--restarts 0]
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path


def write(path: Path, rows: int, restarts: int) -> None:
    """Write four metrics a row, an evaluation every 1,000 rows; after each restart a fiftieth is trained again."""
    with path.open("w", encoding="utf-8") as file:
        step = 0
        for row in range(rows):
            step += 1
            if restarts and row and row % (rows // (restarts + 1)) == 0:
                step -= rows // 50
            values = {
                "step": step,
                "loss": 5 * math.exp(-step / 1e5) + 0.1 * math.sin(row),
                "gradNorm": 1 + row % 7 / 8,
            }
            values |= {"learningRate": 1e-3 * (1 - row / rows), "stepsPerSecond": 80 + row % 13 / 10}
            if row % 1000 == 999:
                values["evalLoss"] = values["loss"] + 0.2
            file.write(json.dumps(values) + "\n")


MEASURED = """
import resource, sys
from pathlib import Path
from torchyard.client.histories import curve, histories_of
from torchyard.client.metrics import table_of
what, path = sys.argv[1], Path(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF)
if what == "table":
    rows = len(table_of(path))
else:
    rows = histories_of(path).rows
after = resource.getrusage(resource.RUSAGE_SELF)
spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
more = (after.ru_maxrss - before.ru_maxrss) / 1024
print(f"{what}: {rows:,} rows, {spent:.2f} s of processor, {more:.0f} MiB")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--restarts", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "metrics.jsonl")
        write(path, options.rows, options.restarts)
        print(f"{path.stat().st_size / 2**20:.0f} MiB, {options.rows:,} rows, {options.restarts} restarts")
        for what in ("table", "without an index", "with an index"):
            subprocess.run([sys.executable, "-c", MEASURED, what, str(path)], check=True)
        print(f"index: {Path(folder, '.metrics.index').stat().st_size / 2**10:.0f} KiB")


if __name__ == "__main__":
    main()
