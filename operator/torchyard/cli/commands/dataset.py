"""`torchyard dataset inspect PATH`."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Literal

from torchyard.api.formatting import plural, span
from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError


def dataset_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `dataset`."""
    parser.add_argument("action", choices=("inspect",), help="inspect: show its contents, and check them")
    parser.add_argument(
        "path", metavar="PATH", help="folder of a LeRobot dataset, or .jsonl or .parquet files of text, or their URL"
    )
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", type=Path, help="of text: folder of a model; lengths are in its tokens"
    )
    common.output(parser, "json", help="print one document")


def dataset(*, action: Literal["inspect"], path: str, tokenizer: Path | None, output: Literal["json"] | None) -> int:
    """Show the contents of a dataset, and its problems.

    Of text: records, their formats, fields and lengths; the first 100,000 records are read. Of a LeRobot dataset:
    episodes, lengths, features and statistics; all numbers of all frames are checked, and of each camera the first and
    the last image of every episode is decoded.
    Exit codes: 0 all can be used, 1 there are problems, 65 it is not such a dataset.
    """
    del action
    found = ask(path, tokenizer)
    if output is not None:
        from torchyard.cli.output import emit

        emit(found, output)
    else:
        for line in shown_text(found) if found.get("kind") == "text" else shown(found):
            print(line)
    return FAILED if found["problemCount"] else SUCCEEDED


def ask(path: str, tokenizer: Path | None) -> dict[str, Any]:
    """Return the report of the trainers on a dataset; they have the libraries that read it.

    Raises:
        RefusalError: trainers are not installed here, or it is not a dataset.
    """
    import json
    import os
    import subprocess

    from torchyard.interpreter import own_environment, own_python

    place = path if "://" in path else str(Path(path).absolute())
    words = ["--tokenizer", str(tokenizer.absolute())] if tokenizer is not None else []
    command = own_python("-m", "torchyard_trainers", "dataset", place, *words)
    done = subprocess.run(command, capture_output=True, text=True, env=own_environment(os.environ), check=False)
    if done.returncode == 0:
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
    said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    if "No module named" in said:
        raise RefusalError("trainers are not installed here", "pip install 'torchyard[trainers]'")
    what, _, fix = said.removeprefix("torchyard_trainers: ").partition("; ")
    raise RefusalError(what, fix, done.returncode)


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
