"""Whether a preset learns with drawn seeds: each is run once, and each must reach the goal.

    OMP_NUM_THREADS=1 nice python benchmarks/seeds.py WORKLOAD [--seeds 20] [--skip 0] [--draw TEXT]
                                                       [--set NAME=VALUE] [-o json]

Seeds are drawn from TEXT, by default from the date: seed number i is the first 32 bits of SHA-256 of `TEXT-i`, without
the highest. `--skip 14` leaves out the first 14, which an earlier run has shown. The goals are those of the learning
tests (`tests/support/learning.py`). Each run is a process of one thread, forked from one that has imported all
workloads. Exits with 1 if a seed misses a bound.
"""

import argparse
import importlib
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.learning import GOALS, Goal, drawn_seeds, summary_of, write_config
from tests.support.warm_commands import PROGRAMS, become, import_all, leave

from torchyard_agent.workers.environment import KEEP_MEMORY

# Measured after the supervised steps of another method: no bound, but it explains much.
STARTS = ("exactMatchSupervised",)


class Result(NamedTuple):
    """One run: the metrics that its goal bounds, and what it took."""

    seed: int
    metrics: dict[str, float]
    misses: list[str]
    processor: float  # seconds
    memory: int  # bytes, the largest resident set


def main(words: Sequence[str]) -> int:
    """Run a workload with every drawn seed; print a table and one sentence, or JSON."""
    options = parse(words)
    goal = GOALS[options.workload]
    goal = goal._replace(params={**goal.params, **dict(options.set)})
    seeds = drawn_seeds(options.draw, options.seeds)[options.skip :]
    console = Console(stderr=True)
    import_all(PROGRAMS["workloads"][1])
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results = []
    folder = Path(tempfile.mkdtemp())  # a fork that ends would remove a TemporaryDirectory
    try:
        # A thread that draws would be missing in the forks.
        with Progress(*columns, console=console, auto_refresh=False) as progress:
            bar = progress.add_task(options.workload, total=len(seeds))
            progress.refresh()
            for number, seed in enumerate(seeds):
                results.append(run(goal, seed, folder / str(number)))
                progress.console.print(f"{seed}: {described(results[-1])}")
                progress.update(bar, advance=1, refresh=True)
    finally:
        shutil.rmtree(folder)
    if options.output == "json":
        lines = [each._asdict() for each in results]
        print(json.dumps({"workload": options.workload, "draw": options.draw, "results": lines}))
    else:
        show(options, goal, results)
    return int(any(each.misses for each in results))


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=GOALS)
    parser.add_argument("--seeds", type=int, default=20, help="seeds to draw (default: %(default)s)")
    parser.add_argument("--skip", type=int, default=0, help="the first of them that are not run")
    parser.add_argument(
        "--draw", default=datetime.now(UTC).date().isoformat(), help="text that seeds follow from (default: the date)"
    )
    parser.add_argument(
        "--set", type=assignment, action="append", default=[], metavar="NAME=VALUE", help="another parameter"
    )
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args(words)
    if not 0 <= options.skip < options.seeds:
        parser.error(f"--skip: {options.skip} of {options.seeds} seeds; leave at least one")
    return options


def assignment(text: str) -> tuple[str, Any]:
    """Return the name and value of a parameter; a value that is not JSON is a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def run(goal: Goal, seed: int, folder: Path) -> Result:
    """Train once in a fork of this process."""
    write_config(folder, goal.trainer, goal.params, seed)
    log = folder / "log"
    if not (process := os.fork()):
        out = os.open(log, os.O_CREAT | os.O_WRONLY)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **KEEP_MEMORY}
        become(["torchyard_trainers", "--config", "config.json"], str(folder), environment, out, out)
        leave(importlib.import_module(PROGRAMS["workloads"][0]).main(["--config", "config.json"]))
    _, status, usage = os.wait4(process, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"seed {seed}: exit code {code}\n{log.read_text()[-2000:]}")
    summary = summary_of(folder)
    metrics = {name: summary[name] for name in (*STARTS, *goal.below, *goal.least) if name in summary}
    return Result(seed, metrics, goal.misses(summary), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def described(result: Result) -> str:
    """Return a run in a few words."""
    return ", ".join(result.misses) or ", ".join(f"{name} {value:.3f}" for name, value in result.metrics.items())


def show(options: argparse.Namespace, goal: Goal, results: Sequence[Result]) -> None:
    """Print a row for each seed, and the summary."""
    table = Table(title=f"{options.workload}, seeds drawn from {options.draw}", title_justify="left")
    bounds = {name: f" < {value:g}" for name, value in goal.below.items()}
    bounds |= {name: f" >= {value:g}" for name, value in goal.least.items()}
    for column in ("seed", *(f"{name}{bounds.get(name, '')}" for name in results[0].metrics), "processor"):
        table.add_column(column, justify="right")
    for each in results:
        style = "red" if each.misses else None
        figures = (f"{value:.3f}" for value in each.metrics.values())
        table.add_row(str(each.seed), *figures, f"{each.processor:.0f} s", style=style)
    Console().print(table)
    reached = sum(not each.misses for each in results)
    first = next(iter((*goal.least, *goal.below)))
    values = [each.metrics[first] for each in results]
    seconds = statistics.median(each.processor for each in results)
    print(
        f"{options.workload}: {reached} of {len(results)} seeds reach the goal; {first} from {min(values):.3f} to "
        f"{max(values):.3f}; {seconds:.0f} s of a processor each."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
