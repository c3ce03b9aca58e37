"""Draw the curves of a job: `torchyard curves NAME [METRIC ...]`."""

import shutil
from argparse import ArgumentParser
from typing import Any

from torchyard.api.formatting import clean
from torchyard.api.values import plural
from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError
from torchyard.cli.output import Format, emit, say
from torchyard.cli.views.curve import chart
from torchyard.client.backend import location_flags
from torchyard.client.curves import Curves
from torchyard.client.histories import Curve

ROWS = 8
WIDEST = 120


def curves_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `curves`."""
    common.run_name(parser)
    parser.add_argument("metrics", metavar="METRIC", nargs="*", help="name of a metric; by default all of them")
    common.output(parser, "json", "yaml", help="print the buckets of each curve instead")
    common.location_options(parser)


def curves(name: str, metrics: list[str], output: Format | None, context: str | None, namespace: str | None) -> int:
    """Carry out `torchyard curves`.

    Draws the metrics of a job over its steps, also of one that is over. On a cluster, every value is read from a
    running pod; without one, the values that were read before, or else those that the status keeps.

    With -o, each curve has columns of the same length, one entry for each bucket of steps: first and last step; mean,
    low and high of the finite values; how many values are finite, and how many are bad: NaN or infinite.
    """
    from torchyard.cli.arguments import ask

    found: Curves = ask(lambda backend: backend.curves(name), name, context, namespace)
    if not found.metrics:
        why = f" ({found.note})" if found.note else ""
        fix = f"`torchyard status {name}{location_flags(context, namespace)}`"
        raise RefusalError(f"{name!r} has no metrics yet{why}", fix, FAILED)
    if unknown := [each for each in metrics if each not in found.metrics]:
        there = ", ".join(clean(each) for each in sorted(found.metrics))
        raise RefusalError(f"{name!r} has no metric {unknown[0]!r}", f"it has {there}")
    chosen = metrics or sorted(found.metrics)
    if output is not None:
        emit(_document(found, chosen), output)
        return SUCCEEDED
    width = min(WIDEST, shutil.get_terminal_size().columns)
    for metric in chosen:
        print("\n".join([*chart(metric, found.metrics[metric], width, ROWS), ""]))
    say(f"{name}: {found.sentence}" + (f"; {plural(found.left_out, 'metric')} left out" if found.left_out else ""))
    return SUCCEEDED


def _document(curves: Curves, names: list[str]) -> dict[str, Any]:
    columns = Curve.__struct_fields__
    return {
        "source": curves.source,
        "sentence": curves.sentence,
        "leftOut": curves.left_out,
        "metrics": {
            name: {column: list(getattr(curves.metrics[name], column)) for column in columns} for name in names
        },
    }
