"""`torchyard validate`: every fault of a job file at once, with line and fix. No content makes it raise."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from torchyard.api import values
from torchyard.api.files import read_bounded
from torchyard.api.resource import API_VERSION, KIND, TrainingJob, read_job
from torchyard.api.schema import object_schema, spec_schema
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.validation.changes import forbidden_changes
from torchyard.api.validation.overrides import override
from torchyard.api.validation.parse import broken_rules
from torchyard.api.validation.problems import Problem, nearest, shown
from torchyard.api.validation.schema_check import UNSOUND, check, check_params
from torchyard.api.validation.yaml_tree import MAX_BYTES, At, NotTextError, YamlError, read, tree_of_values
from torchyard.api.values import BUILT_IN

MAX_PROBLEMS = 100


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds: its job, or what is wrong with it."""

    jobs: tuple[TrainingJob, ...] = ()
    problems: tuple[Problem, ...] = ()


def validate_file(path: Path | str, sets: Sequence[str] = ()) -> Validation:
    """Check a job file after applying `sets` (`path=value`)."""
    file = str(path)
    try:
        data = read_bounded(Path(path), MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        problem = Problem(file, 0, "", f"it cannot be read ({reason})", "give the path of a readable file")
        return Validation(problems=(problem,))
    return validate_bytes(data, file, sets)


def validate_bytes(data: bytes, file: str, sets: Sequence[str] = ()) -> Validation:
    """Check the bytes of a job file; `file` is its name in messages."""
    root = tree_of(data, file)
    if isinstance(root, Problem):
        return Validation(problems=(root,))
    tree, found = root
    return _Checked(file, tree, [*found, *overridden(tree, sets)]).result()


def validate_document(document: Mapping[str, Any], source: str, sets: Sequence[str] = ()) -> Validation:
    """Check the JSON values of a job that is in no file; `source` names it in messages, which have no lines."""
    tree = tree_of_document(document, source)
    if isinstance(tree, Problem):
        return Validation(problems=(tree,))
    return _Checked(source, tree, overridden(tree, sets)).result()


def overridden(tree: At, sets: Sequence[str]) -> list[Problem]:
    """Apply `path=value` changes to the tree in place; return the faults of those that cannot be applied."""
    return [problem for text in sets if (problem := override(tree, text)) is not None]


def check_update(old: TrainingJob, new: TrainingJob, file: str = "") -> tuple[Problem, ...]:
    """Name every change of a job that exists which the API server would refuse as well."""
    return tuple(
        Problem(file, 0, f"spec.{fixed.field}", fixed.what, fixed.fix)
        for fixed in forbidden_changes(old.spec, new.spec)
    )


def checked_tree(root: At, file: str) -> Validation:
    """Check a job that was read already."""
    return _Checked(file, root, []).result()


SWEEP_KIND = "TrainingSweep"
_FIELDS_OF_KINDS = {SWEEP_KIND: {"objective", "jobTemplate"}, KIND: {"trainer", "command", "script"}}


def kind_of_spec(root: At) -> str | None:
    """Return the kind whose fields the spec of an object has, whatever kind it names; None: unknown."""
    spec = root.value.get("spec") if isinstance(root.value, dict) else None
    names = spec.value.keys() if spec is not None and isinstance(spec.value, dict) else ()
    found = [kind for kind, fields in _FIELDS_OF_KINDS.items() if not fields.isdisjoint(names)]
    return found[0] if len(found) == 1 else None


def has_kind(file: Path, kind: str) -> bool:
    """Return whether a regular file holds an object of a kind; other faults of it do not raise."""
    if not file.is_file():
        return False
    try:
        data = read_bounded(file, MAX_BYTES + 1)
    except (OSError, ValueError):
        return False
    return kind.encode() in data and kind_of(data) == kind


def kind_of(data: bytes) -> str | None:
    """Return the kind that the one object of a file names; None: it names none, or cannot be read."""
    root = tree_of(data, "")
    if isinstance(root, Problem) or not isinstance(root[0].value, dict):
        return None
    found = root[0].value.get("kind")
    return found.value if found is not None and isinstance(found.value, str) else None


def tree_of(data: bytes, file: str) -> tuple[At, list[Problem]] | Problem:
    """Read the one object of a file with its lines, and list the faults that do not keep it from being read."""
    if len(data) > MAX_BYTES:
        return Problem(file, 0, "", "larger than 1 MiB", "a job is far smaller; is this the right file?")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Problem(file, line, "", f"byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8")
    try:
        documents, repeated = read(text)
    except YamlError as error:
        return Problem(file, error.line, "", error.what, error.fix)
    if not documents:
        return Problem(file, 1, "", "the file is empty", f"start with apiVersion: {API_VERSION}")
    if len(documents) > 1:
        what = f"{len(documents)} documents in one file"
        return Problem(file, documents[1].line, "", what, "put each job into a file of its own")
    return documents[0], [Problem(file, error.line, "", error.what, error.fix) for error in repeated]


def tree_of_document(document: Any, source: str) -> At | Problem:
    """Return JSON values as a tree without lines, or why they cannot be a job."""
    try:
        return tree_of_values(document)
    except NotTextError as error:
        return Problem(source, 0, error.path, error.what, error.fix)
    except YamlError as error:
        return Problem(source, 0, "", error.what, error.fix)


class _Checked:
    """One object on its way through schema, rules and parameters."""

    def __init__(self, file: str, root: At, problems: list[Problem]) -> None:
        self._file = file
        self._root = root
        self._problems = problems

    def result(self) -> Validation:
        self._check_object()
        if not self._problems:
            try:
                return Validation(jobs=(read_job(self._root.plain),))
            except ValueError as error:
                self._report("", self._root, str(error), "correct it")
        ordered = sorted(self._problems, key=lambda problem: problem.line)
        if len(ordered) > MAX_PROBLEMS:
            more = Problem(self._file, 0, "", f"{len(ordered) - MAX_PROBLEMS} more mistakes", "correct these first")
            ordered = [*ordered[:MAX_PROBLEMS], more]
        return Validation(problems=tuple(ordered))

    def _check_object(self) -> None:
        if isinstance(self._root.value, dict) and self._is_another_kind(self._root.value):
            return
        check(object_schema(), self._root, "", self._report)
        spec_at = self._find("spec")
        if spec_at is self._root or not isinstance(spec_at.value, dict):
            return
        faulty = {problem.path for problem in self._problems}
        sound = check(spec_schema(), spec_at, "spec", _ignore)
        spec = _decode({} if sound is UNSOUND else sound)
        if isinstance(spec, str):
            self._report("spec", spec_at, spec, "correct it")
            return
        for path, what, fix in broken_rules(spec, faulty):
            self._report(path, self._find(path), what, fix)
        if spec.trainer is not None and spec.trainer.name in BUILT_IN:
            params = self._find("spec.trainer.params")
            if isinstance(params.value, dict) and "spec.trainer.params" not in faulty:
                self._check_params(spec.trainer.name, params)

    def _check_params(self, trainer: str, params: At) -> None:
        given = _child(_child(_child(self._root, "spec"), "trainer"), "params")
        check_params(trainer, given if given is not None else At(value={}, line=params.line), self._report)

    def _is_another_kind(self, fields: Mapping[str, At]) -> bool:
        """Report an object of another kind once, instead of fifty wrong fields; return whether it is one."""
        kind, version = (fields[name].value if name in fields else None for name in ("kind", "apiVersion"))
        looks = kind_of_spec(self._root)
        if kind in (KIND, SWEEP_KIND) and looks == SWEEP_KIND:  # a tuple: any value can be a kind here
            if kind == KIND:
                what, fix = f"spec has the fields of a sweep, and this is a {KIND}", f"use kind: {SWEEP_KIND}"
            else:
                what, fix = f"a {SWEEP_KIND} is not a {KIND}", "use it with `torchyard run` or `torchyard submit`"
            self._report("kind", fields["kind"], what, fix)
            return True
        strange = isinstance(kind, str) and kind != KIND and nearest(kind, [KIND]) is None
        if strange:
            where = f" of {shown(version)}" if isinstance(version, str) else ""
            self._report("kind", fields["kind"], f"{shown(kind)}{where} is not a {KIND}", f"use kind: {KIND}")
        return strange

    def _find(self, path: str) -> At:
        """Return the value at a path, or the nearest one around it that is there."""
        at = self._root
        for part in re.findall(r"[^.\[\]]+", path):
            below = _child(at, part)
            if below is None:
                break
            at = below
        return at

    def _report(self, path: str, at: At, what: str, fix: str) -> None:
        file, line = (at.origin, 0) if at.origin else (self._file, at.key_line or at.line)
        self._problems.append(Problem(file, line, path, what, fix))


def _child(at: At | None, part: str) -> At | None:
    if at is not None and isinstance(at.value, dict):
        return at.value.get(part)
    if at is not None and isinstance(at.value, list) and part.isdecimal() and int(part) < len(at.value):
        child: At = at.value[int(part)]
        return child
    return None


def _decode(sound: Mapping[str, Any]) -> TrainingJobSpec | str:
    try:
        return msgspec.convert(sound, TrainingJobSpec, dec_hook=values.decode)
    except (msgspec.ValidationError, ValueError) as error:
        return str(error)


def _ignore(_path: str, _at: At, _what: str, _fix: str) -> None:
    return None
