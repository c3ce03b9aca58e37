"""Data never becomes code: no file of ours uses a loader that executes what it reads."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("operator", "agent", "trainers", "hack", "benchmarks", "examples", "charts", "images")
FILES = sorted(path for top in OURS for path in (ROOT / top).rglob("*.py"))
MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# The user's own script is what a worker is there to run.
PROGRAMS = {("agent/torchyard_agent/workers/worker.py", "exec")}


LOADERS = {
    "torch.jit.load",
    "torch.package.PackageImporter",
    "torch.hub.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "yaml.unsafe_load_all",
    "yaml.full_load_all",
}


def faults(source, where=""):
    """What a file does that may run code of a file it reads: line and reason."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            yield from ((node.lineno, f"imports {name}") for name in names if name.split(".")[0] in MODULES)
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, fault) for fault in faults_of_a_call(node, where))


def faults_of_a_call(node, where):
    given = {each.arg: ast.unparse(each.value) for each in node.keywords}
    called = ast.unparse(node.func)
    if called in LOADERS or (called in {"eval", "exec"} and (where, called) not in PROGRAMS):
        yield f"calls {called}"
    if called == "torch.load" and given.get("weights_only") != "True":
        yield "calls torch.load without weights_only=True"
    if called in {"yaml.load", "yaml.load_all"} and "Loader" not in given:
        yield f"calls {called} without a safe Loader"
    yield from (
        f"passes {name}" for name in ("allow_pickle", "trust_remote_code") if given.get(name, "False") != "False"
    )


def test_no_file_of_ours_runs_what_it_reads():
    found = {where: list(faults(path.read_text(), where)) for path in FILES for where in [str(path.relative_to(ROOT))]}
    assert len(found) > 400
    assert not {where: each for where, each in found.items() if each}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "eval(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "yaml.load(text)",
        "numpy.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_what_would_run_it_is_found(source):
    assert list(faults(source))
