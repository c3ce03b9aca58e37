"""`torchyard validate sweep.yaml`: every fault of a sweep's file at once, with line and fix."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from torchyard.api.files import read_bounded
from torchyard.api.resource import API_VERSION
from torchyard.api.resource import KIND as JOB_KIND
from torchyard.api.validation.problems import Problem
from torchyard.api.validation.schema_check import check
from torchyard.api.validation.validate import (
    MAX_PROBLEMS,
    checked_tree,
    kind_of_spec,
    overridden,
    tree_of,
    tree_of_document,
)
from torchyard.api.validation.yaml_tree import MAX_BYTES, At
from torchyard.sweeps.codec import read_sweep, sweep_document
from torchyard.sweeps.resource import KIND, TrainingSweep, trial_name
from torchyard.sweeps.rules import at_the_bounds, faults
from torchyard.sweeps.schema import object_schema

TEMPLATE = "spec.jobTemplate.spec"


class SweepValidation(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds: its sweep, or what is wrong with it."""

    sweep: TrainingSweep | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def document(self) -> dict[str, Any] | None:
        """The sweep as JSON values."""
        return sweep_document(self.sweep) if self.sweep is not None else None


def validate_sweep(path: Path | str, sets: Sequence[str] = ()) -> SweepValidation:
    """Check the file of a sweep after applying `sets` (`path=value`).

    Raises:
        OSError: it cannot be read.
    """
    return validate_sweep_bytes(read_bounded(Path(path), MAX_BYTES + 1), str(path), sets)


def validate_sweep_bytes(data: bytes, file: str, sets: Sequence[str] = ()) -> SweepValidation:
    """Check the bytes of a sweep's file; `file` is its name in messages."""
    root = tree_of(data, file)
    if isinstance(root, Problem):
        return SweepValidation(problems=(root,))
    tree, found = root
    return _checked(tree, file, [*found, *overridden(tree, sets)])


def validate_sweep_document(document: Mapping[str, Any], source: str, sets: Sequence[str] = ()) -> SweepValidation:
    """Check the JSON values of a sweep that is in no file; `source` names it in messages, which have no lines."""
    tree = tree_of_document(document, source)
    if isinstance(tree, Problem):
        return SweepValidation(problems=(tree,))
    return _checked(tree, source, overridden(tree, sets))


def _checked(tree: At, file: str, problems: list[Problem]) -> SweepValidation:
    def report(path: str, at: At, what: str, fix: str) -> None:
        origin, line = (at.origin, 0) if at.origin else (file, at.key_line or at.line)
        problems.append(Problem(origin, line, path, what, fix))

    if kind_of_spec(tree) == JOB_KIND:
        named = _find(tree, "kind")
        if named.value == JOB_KIND:
            report("kind", named, f"a {JOB_KIND} is not a {KIND}", "use it with torchyard.run or `torchyard run`")
        else:
            report("kind", named, f"spec has the fields of a job, and this is a {KIND}", f"use kind: {JOB_KIND}")
    else:
        check(object_schema(), tree, "", report)
    sweep = None
    if not problems:
        try:
            sweep = read_sweep(tree.plain)
        except ValueError as error:
            report("", tree, str(error), "correct it")
    if sweep is not None:
        for path, what, fix in faults(sweep.spec, lambda path: _find(tree, f"spec.{path}").written):
            report(f"spec.{path}", _find(tree, f"spec.{path}"), what, fix)
        if not problems:
            problems += _of_the_job(tree, file, sweep)
        for path, what, fix in at_the_bounds(sweep.spec) if not problems else ():
            report("spec.parameters", _find(tree, "spec.parameters"), f"{path}: {what}", fix)
    problems.sort(key=lambda problem: problem.line)
    return SweepValidation(sweep=None if problems else sweep, problems=tuple(problems[:MAX_PROBLEMS]))


def _of_the_job(tree: At, file: str, sweep: TrainingSweep) -> list[Problem]:
    """Return the faults of the template as a job, with the lines of the sweep's file."""
    line = tree.line
    whole = {
        "apiVersion": At(value=API_VERSION, line=line),
        "kind": At(value=JOB_KIND, line=line),
        "metadata": At(value={"name": At(value=trial_name(sweep.metadata.name, 0), line=line)}, line=line),
        "spec": _find(tree, TEMPLATE),
    }
    found = checked_tree(At(value=whole, line=line), file).problems
    return [
        Problem(each.file, each.line, re.sub(r"^spec\b", TEMPLATE, each.path), each.what, each.fix) for each in found
    ]


def _find(root: At, path: str) -> At:
    """Return the value at a path, or the nearest one around it that is there."""
    at = root
    for part in re.findall(r"[^.\[\]]+", path):
        value = at.value
        if isinstance(value, dict) and part in value:
            at = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            at = value[int(part)]
        else:
            break
    return at
