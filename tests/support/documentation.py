"""What each code block of a page must be, by its language: a job that is valid, a command that exists, a program.

Commands are parsed and not run: pages also show what changes a cluster. A block whose language has no evaluator fails,
so that a page shows output and drawings only as `text`, and output of commands below a line with `$`.
"""

import ast
import contextlib
import io
import itertools
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import yaml
from markdown_it import MarkdownIt
from msgspec.structs import fields

import torchyard
from torchyard.api.resource import API_VERSION, KIND
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.validation.validate import validate_document
from torchyard.cli.main import COMMANDS, command_first, parser_of
from torchyard.sweeps.spec import TrainingSweepSpec
from torchyard.sweeps.validate import validate_sweep_document

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/torchyard"
WORKLOADS = ("lm", "vla", "vlm", "vecrl", "cvrp")
PROGRAMS: tuple[dict[str, Any], ...] = ({"command": ["torchrun", "train.py"]}, {"trainer": {"name": "lm"}})
SWEEP = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "parameters": [{"path": "trainer.params.lr", "choice": [0.1, 0.2]}],
    "jobTemplate": {"spec": {"trainer": {"name": "vecrl", "params": {"environment": "CartPole-v1"}}}},
}


class Block(NamedTuple):
    """A fenced block of a page: `line` is that of its first line, from 1."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page."""
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type == "fence" and token.map is not None:
            yield Block(token.info.partition(" ")[0].strip(), token.content, token.map[0] + 2)


def problems(block: Block) -> list[str]:
    """Return what is wrong with a block, a sentence each."""
    judge = JUDGES.get(block.language)
    if judge is None:
        return [f"{block.language or 'no language'}: none of {', '.join(JUDGES)}"]
    return judge(block.text)


def _commands(text: str) -> list[str]:
    """Judge a script, each line of which is a command."""
    check = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    if check.returncode:
        return [check.stderr.strip()]
    return [problem for line in text.replace("\\\n", " ").splitlines() for problem in _command(line)]


def _console(text: str) -> list[str]:
    """Judge a terminal: commands after a `$`, and their output."""
    lines = re.findall(r"^\$ ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    return _commands("\n".join(lines)) if lines else ["no line begins with `$`"]


def _command(line: str) -> Iterator[str]:
    """Judge the calls of our own programs in one line of a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in (*lexer, ";"):
        if set(word) <= set(";&|()"):
            yield from _call(words)
            words = []
        else:
            words.append(word)


def _call(words: list[str]) -> Iterator[str]:
    while words and re.fullmatch(r"\w+=.*|do|then|kubectl|uvx|exec", words[0]) and words != ["kubectl"]:
        if words[0] == "kubectl" and words[1] != "torchyard":
            return
        words = words[1:]
    if not words:
        return
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^([\w.-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        yield from (
            f"make {each}: no such target"
            for before, each in itertools.pairwise(["", *arguments])
            if before != "-C" and "=" not in each and not each.startswith("-") and each not in targets
        )
    if program != "torchyard" or not arguments or arguments[0].startswith("--"):
        return
    cut = next((at for at, word in enumerate(arguments) if set(word) <= set("<>")), len(arguments))
    name, *rest = command_first(arguments[:cut])
    if name not in COMMANDS:
        yield f"torchyard {name}: no such command"
        return
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            parser_of(name).parse_args(rest)
    except SystemExit:
        pass  # --help
    except Exception as error:  # noqa: BLE001 -- the command line raises its own sentences
        yield f"{shlex.join(words)}: {error}"


def _python(text: str) -> list[str]:
    """Judge a program: it compiles, and what it uses of TorchYard exists."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        with contextlib.suppress(SyntaxError):
            ast.parse(f"def {text.rstrip()}: ...")  # the reference shows signatures
            return []
        return [f"line {error.lineno}: {error.msg}"]
    names = {"torchyard"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname for each in node.names if each.name == "torchyard" and each.asname}
    used = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
    ]
    return [f"torchyard.{name} does not exist" for name in used if not hasattr(torchyard, name)]


def _json(text: str) -> list[str]:
    try:
        json.loads(text)
    except ValueError as error:
        return [str(error)]
    return []


def _toml(text: str) -> list[str]:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [str(error)]
    return []


def _yaml(text: str) -> list[str]:
    """Judge objects, and parts of jobs, sweeps, parameters and values of the chart."""
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        return [str(error)]
    return [problem for document in documents for problem in _document(document)]


def _document(document: Any) -> list[str]:
    if not isinstance(document, dict):
        return ["no mapping"]
    if "apiVersion" in document:
        return _object(document)
    part = document["spec"] if document.keys() == {"spec"} else document
    judges = (
        (keys_of(TrainingSweepSpec), _sweep),
        (keys_of(TrainingJobSpec), _job),
        ({"scrape_configs"}, _prometheus),
        ({"repos"}, _pre_commit),
        (yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")).keys(), _values),
    )
    judge = next((judge for names, judge in judges if names >= part.keys()), _params)
    return judge(part)


def _object(document: dict[str, Any]) -> list[str]:
    if document["apiVersion"] == API_VERSION:
        judge = _job if document.get("kind") == KIND else _sweep
        return judge(document.get("spec", {}))
    named = document.get("kind") and document.get("metadata", {}).get("name")
    return [] if named else ["an object without kind or name"]


def _values(document: dict[str, Any]) -> list[str]:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return [each.message for each in jsonschema.Draft202012Validator(schema).iter_errors(document)]


def _prometheus(document: dict[str, Any]) -> list[str]:
    return [f"{each}: no job_name" for each in document["scrape_configs"] if "job_name" not in each]


def _pre_commit(document: dict[str, Any]) -> list[str]:
    hooks = [hook for repo in document["repos"] for hook in repo["hooks"]]
    return [problem for hook in hooks for problem in _command(f"{hook['entry']} job.yaml")]


def _params(document: dict[str, Any]) -> list[str]:
    """Judge parameters, which must be those of one workload."""
    params = document.get("params", document)
    return min((_job({"trainer": {"name": name, "params": params}}) for name in WORKLOADS), key=len)


def keys_of(model: type) -> set[str]:
    """Return the names of the fields of a model in YAML."""
    return {each.encode_name for each in fields(model)}


def _job(spec: dict[str, Any]) -> list[str]:
    """Judge the spec of a job, or a part of it that names no program: then any program may make it valid."""
    programs = ({},) if spec.keys() & {"trainer", "command", "script"} else PROGRAMS
    judged = []
    for program in programs:
        document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "page"}, "spec": {**program, **spec}}
        judged.append([str(each) for each in validate_document(document, "page").problems])
    return min(judged, key=len)


def _sweep(spec: dict[str, Any]) -> list[str]:
    """Judge the spec of a sweep, or a part of it."""
    document = {
        "apiVersion": API_VERSION,
        "kind": "TrainingSweep",
        "metadata": {"name": "page"},
        "spec": {**SWEEP, **spec},
    }
    return [str(each) for each in validate_sweep_document(document, "page").problems]


JUDGES: dict[str, Callable[[str], list[str]]] = {
    "yaml": _yaml,
    "bash": _commands,
    "console": _console,
    "python": _python,
    "json": _json,
    "toml": _toml,
    "dockerfile": lambda text: [] if re.match("[A-Z]+ ", text) else ["no instruction"],
    "text": lambda text: [],
}
