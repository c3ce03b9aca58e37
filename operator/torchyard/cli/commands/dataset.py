"""`torchyard dataset inspect PATH`."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Literal

from torchyard.api.values import plural, span
from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED


def dataset_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `dataset`."""
    parser.add_argument("action", choices=("inspect",), help="inspect: show its contents, and check them")
    parser.add_argument(
        "path",
        metavar="PATH",
        help="folder of a LeRobot dataset, or files of text (.jsonl, .json, .parquet, .csv, ...), or their URL",
    )
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", type=Path, help="of text: folder of a model; lengths are in its tokens"
    )
    common.output(parser, "json", help="print one document")


def dataset(*, action: Literal["inspect"], path: str, tokenizer: Path | None, output: Literal["json"] | None) -> int:
    """Carry out `torchyard dataset`.

    For text, shows the formats, fields and lengths of the first 100,000 records. For a LeRobot dataset, shows episodes,
    lengths, features and statistics, checks all numbers of all frames, and decodes the first and the last image of each
    camera in every episode.

    Exit codes: 0 no problem was found, 1 there are problems, 65 PATH is not such a dataset.
    """
    del action
    from torchyard.client.trainers import document

    words = ["--tokenizer", str(tokenizer)] if tokenizer is not None else []
    found = document("dataset", path, *words, renamed={"trainer.params.pretrained:": "--tokenizer:"})
    if output is not None:
        from torchyard.cli.output import emit

        emit(found, output)
    else:
        for line in shown_text(found) if found.get("kind") == "text" else shown(found):
            print(line)
    return FAILED if found["problemCount"] else SUCCEEDED


def shown(found: dict[str, Any]) -> list[str]:
    """Return the facts as lines; names in a dataset are not trusted."""
    from torchyard.api.formatting import clean
    from torchyard.cli.views.table import lines

    lengths = found["lengths"]
    head = f"LeRobot {clean(found['version'])}, {plural(found['episodes'], 'episode')}"
    text = [
        f"{head}, {found['frames']} frames at {found['fps']:g} per second ({span(found['seconds'])})",
        _spread(lengths),
        *(f"task: {clean(task)}" for task in found["tasks"]),
        "",
    ]
    rows = []
    for name, each in found["features"].items():
        statistics = found["statistics"].get(name, {})
        cells = [_numbers(statistics.get(kind)) for kind in ("min", "mean", "max", "std")]
        rows.append([clean(name), clean(each["dtype"]), "x".join(map(str, each["shape"])), *cells])
    text += lines(("FEATURE", "TYPE", "SHAPE", "MIN", "MEAN", "MAX", "STD"), rows)
    return [*text, "", *_problems(found)]


def _spread(lengths: dict[str, Any]) -> str:
    """Return how long episodes are."""
    if lengths["min"] == lengths["max"]:
        return f"each episode has {lengths['max']} frames"
    return f"episodes have {lengths['min']} to {lengths['max']} frames, median {lengths['median']:g}"


def shown_text(found: dict[str, Any]) -> list[str]:
    """Return the facts of a dataset of text as lines; its names are not trusted."""
    from torchyard.api.formatting import clean
    from torchyard.cli.views.table import lines

    looked = "" if found["checked"] == found["records"] else f", {found['checked']} of them read"
    text = [plural(found["records"], "record") + looked]
    text += [f"format {clean(name)}: {plural(count, 'record')}" for name, count in found["formats"].items()]
    if lengths := found["lengths"]:
        text.append(
            f"{lengths['min']} to {lengths['max']} {found['unit']}, median {lengths['median']:g}, 95 % up to "
            f"{lengths['p95']:g}; {lengths['total']} in all"
        )
    rows = []
    for name, types in found["fields"].items():
        rows.append([clean(name), ", ".join(map(clean, types)), str(sum(types.values()))])
    text += ["", *lines(("FIELD", "TYPE", "RECORDS"), rows)] if rows else []
    return [*text, "", *_problems(found)]


def _problems(found: dict[str, Any]) -> list[str]:
    from torchyard.api.formatting import clean

    more = found["problemCount"] - len(found["problems"])
    text = [f"problem: {clean(problem)}" for problem in found["problems"]] + (
        [f"and {more} more problems"] if more else []
    )
    return text or ["no problems"]


def _numbers(values: list[float] | None) -> str:
    """Return the first numbers of a vector."""
    if not values:
        return ""
    return ",".join(f"{each:.3g}" for each in values[:4]) + (",..." if len(values) > 4 else "")
