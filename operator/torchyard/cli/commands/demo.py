"""`torchyard demo`: train the shipped example on two local nodes, then show what it learned."""

import json
from argparse import ArgumentParser
from typing import Any

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED


def demo_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `demo`."""
    parser.add_argument("--name", default="demo", help="name of the run")
    common.sets(parser)


def demo(name: str, sets: list[str]) -> int:
    """Carry out `torchyard demo`.

    The model plans the routes of vehicles, and is compared with the nearest-neighbour heuristic.
    """
    from torchyard.cli.commands.foreground import watch
    from torchyard.cli.output import console, say
    from torchyard.client.files import job_of
    from torchyard.client.start import RequestedJob, start
    from torchyard.shipped import examples

    example = examples() / "cvrp.yaml"
    wanted = RequestedJob(job_of(example, sets), example.parent, str(example), is_file=True)
    folder = start(wanted, name, notice=say)
    code = watch(folder)
    if code == SUCCEEDED:
        console(highlight=False).print(lesson(json.loads((folder.checkpoints / "final" / "summary.json").read_text())))
    return code


def lesson(summary: dict[str, Any]) -> Any:
    """Return a table of what was learned: mean tour lengths on the same instances, and how they compare."""
    from rich import box
    from rich.table import Table

    nearest = float(summary["costNearest"])
    table = Table(box=box.SIMPLE_HEAD, title="What the model learned", title_justify="left", title_style="bold")
    table.add_column("routes")
    table.add_column("mean length", justify="right")
    table.add_column("against nearest neighbour", justify="right")
    rows = [
        ("untrained model", summary.get("costUntrained"), ""),
        ("nearest neighbour", nearest, "bold"),
        (f"after {summary['steps']} steps", summary["cost"], "bold green" if summary["cost"] < nearest else "bold red"),
    ]
    for label, value, style in rows:
        if isinstance(value, int | float) and value == value:  # noqa: PLR0124  NaN: it was not measured
            gap = "" if label == "nearest neighbour" else f"{100 * (value / nearest - 1):+.1f} %"
            table.add_row(label, f"{value:.3f}", gap, style=style)
    return table
