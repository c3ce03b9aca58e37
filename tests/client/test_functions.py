"""Functions as jobs: what travels, what the pods execute, and what is said of a function that cannot travel."""

import functools
import inspect
import json
import linecache
import subprocess
import sys
import types

import pytest

import torchyard as ty
from torchyard.api.spec import MAX_SCRIPT_BYTES
from torchyard.client.request import requested

MODULE = '''
from __future__ import annotations

import json
import sys

import torchyard as ty
from torchyard import job

RATE = 0.5


@job
def other():
    pass


@ty.job(nodes=2, gpus_per_node=8, checkpoint={"keepLast": 3}, image="me/torch:1")
def My_train(steps, *, names=("a", "b"), text="it's '{quoted}' \\\\n"):
    """Writes what it got."""
    print(json.dumps([steps, list(names), text, RATE, __name__, "torchyard" in sys.modules]))


if __name__ == "__main__":
    ty.run(My_train, arguments={"steps": 1})
'''


def module(folder, source, name="trained"):
    """A module as an import makes it."""
    (folder / f"{name}.py").write_text(source)
    made = types.ModuleType(name)
    made.__file__ = str(folder / f"{name}.py")
    sys.modules[name] = made
    exec(compile(source.removeprefix("\ufeff"), made.__file__, "exec"), made.__dict__)
    return made


def executed(job, folder):
    """What the job's script prints where TorchYard is not installed, started with its arguments."""
    (folder / "script.py").write_text(job.spec.script)
    return subprocess.run(
        [sys.executable, "-I", "-S", "script.py", *job.spec.args],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def notebook(source, monkeypatch, **names):
    """The function `train` of a cell: its module is __main__, which has no file, and its source is in linecache."""
    main = types.ModuleType("__main__")
    main.__dict__.update(names, ty=ty)
    monkeypatch.setitem(sys.modules, "__main__", main)
    file = "<ipython-input-1>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), main.__dict__)
    return main.train


def test_a_module_travels_and_its_function_is_called_with_json(tmp_path):
    train = module(tmp_path, MODULE).My_train
    text = "it's '{other}' \n\\"
    job = requested(train, "cluster", arguments={"steps": 3, "text": text}).job
    assert job.metadata.name == "my-train"
    assert (job.spec.nodes, job.spec.gpus_per_node, job.spec.checkpoint.keep_last, job.spec.image) == (
        2,
        8,
        3,
        "me/torch:1",
    )
    done = executed(job, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [3, ["a", "b"], text, 0.5, "trained", False]


@pytest.mark.parametrize("backend", ["local", "cluster"])
def test_code_of_the_module_sees_no_arguments_and_its_own_folder(tmp_path, backend):
    source = """\ufeff
import json, sys
import torchyard as ty
ARGV = list(sys.argv)
@ty.job
def train(text):
    print(json.dumps([ARGV, __file__, sys.path[0], text]))
"""
    job = requested(module(tmp_path, source).train, backend, arguments={"text": "\udcff 🎉"}).job
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    done = executed(job, folder)
    assert done.returncode == 0, done.stderr
    argv, file, first, text = json.loads(done.stdout)
    shown = str(tmp_path / "trained.py") if backend == "local" else "trained.py"
    assert (argv, file, text) == ([shown], shown, "\udcff 🎉")
    assert (first == str(tmp_path)) == (backend == "local")


def test_a_direct_call_runs_the_function_here(capsys, tmp_path):
    module(tmp_path, MODULE).My_train(7)
    assert json.loads(capsys.readouterr().out)[0] == 7


def test_names_and_fields_are_changed_for_one_run(tmp_path):
    wanted = requested(
        module(tmp_path, MODULE).My_train, "local", name="other", overrides={"nodes": 3}, arguments={"steps": 1}
    )
    assert (wanted.job.metadata.name, wanted.job.spec.nodes, wanted.folder) == ("other", 3, tmp_path)


def test_a_traceback_in_a_pod_shows_the_line_of_the_module(tmp_path):
    source = "import torchyard as ty\n\n\n@ty.job\ndef train():\n    raise ValueError('no data')\n"
    done = executed(requested(module(tmp_path, source).train, "cluster", arguments={}).job, tmp_path)
    assert "File \"trained.py\", line 6, in train\n    raise ValueError('no data')" in done.stderr


def test_a_module_that_starts_jobs_when_it_is_imported_fails_in_the_pod_with_a_message(tmp_path):
    source = "import torchyard as ty\n@ty.job\ndef train(): pass\n"
    job = requested(module(tmp_path, source).train, "cluster", arguments={}).job
    script = job.spec.script.replace("def train(): pass\n", "def train(): pass\nty.run(train)\n")
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "script.py", "{}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "torchyard.run is called in a job" in done.stderr
    assert 'put that into trained.py under `if __name__ == "__main__":`' in done.stderr


def test_a_module_may_import_catch_and_annotate_with_names_that_pods_lack(tmp_path):
    source = """
import functools
import torchyard.aio
import torchyard as ty
from torchyard import Job, job, run

def show(one: ty.Job | None, other: "list[Job]") -> ty.TrialsTable: ...

def loud(function):
    @functools.wraps(function)
    def inner(**arguments):
        print("before")
        return function(**arguments)
    return inner

@job
@loud
def train(steps=1):
    try:
        {}["x"]
    except ty.NotFoundError:
        print("never")
    except KeyError:
        print("caught", steps)

if __name__ == "__main__":
    run(train)
"""
    done = executed(requested(module(tmp_path, source).train, "cluster", arguments={"steps": 2}).job, tmp_path)
    assert done.stdout == "before\ncaught 2\n", done.stderr


def test_processes_that_multiprocessing_spawns_know_the_classes_of_the_module(tmp_path):
    source = """
import multiprocessing
import torchyard as ty

class Item:
    value = 5

def read(item):
    return item.value

@ty.job
def train():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(read, [Item()]))
"""
    done = executed(requested(module(tmp_path, source).train, "cluster", arguments={}).job, tmp_path)
    assert done.stdout == "[5]\n", done.stderr


def test_in_a_notebook_the_function_travels_with_the_imports_that_it_needs(tmp_path, monkeypatch):
    source = '''
@ty.job(nodes=2)
def train(count: np.ndarray, path=Path("x")) -> np.ndarray:
    """Uses a module, an alias and a class of the notebook's imports."""
    def inner(value):
        return js.dumps([value, str(path), str(OrderedDict(a=1)["a"])])
    print(inner(len([each for each in range(count)])), __name__)
'''
    from collections import OrderedDict
    from pathlib import Path

    train = notebook(
        source, monkeypatch, js=json, OrderedDict=OrderedDict, Path=Path, np=types.SimpleNamespace(ndarray=int)
    )
    job = requested(train, "cluster", arguments={"count": 4}).job
    assert "ty.job" not in job.spec.script
    done = executed(job, tmp_path)
    assert done.stdout == '[4, "x", "1"] notebook\n', done.stderr


def test_a_decorator_of_the_notebook_does_not_travel(monkeypatch):
    source = "@ty.job\n@functools.lru_cache\ndef train():\n    pass\n"
    with pytest.raises(ty.TorchYardError, match="not a Python function"):
        notebook(source, monkeypatch, functools=functools)

    def loud(function):
        @functools.wraps(function)
        def inner():
            return function()

        return inner

    train = notebook(source.replace("functools.lru_cache", "loud"), monkeypatch, loud=loud)
    with pytest.raises(ty.TorchYardError, match=r"train has a decorator beside torchyard\.job") as error:
        requested(train, "local", arguments={})
    assert "into a module" in error.value.fix


def test_names_that_exist_only_in_the_notebook_are_listed_in_the_error(monkeypatch):
    source = "@ty.job\ndef train():\n    return helper(MODEL) + missing\n"
    train = notebook(source, monkeypatch, helper=lambda value: value, MODEL=object())
    with pytest.raises(ty.TorchYardError, match="train uses MODEL, helper, missing of the notebook") as error:
        requested(train, "local", arguments={})
    assert "inside the function" in error.value.fix


BESIDE = "import torchyard as ty\nimport neighbour\n@ty.job(image={image!r})\ndef train(): print(neighbour.WORD)\n"


def test_modules_beside_it_are_found_on_this_machine_and_must_be_in_the_image_of_a_cluster(
    tmp_path, monkeypatch, caplog
):
    (tmp_path / "neighbour.py").write_text("WORD = 'near'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    train = module(tmp_path, BESIDE.format(image=None)).train
    assert executed(requested(train, "local", arguments={}).job, tmp_path).stdout == "near\n"
    with pytest.raises(ty.TorchYardError, match="imports neighbour from its folder, and only the module of train"):
        requested(train, "cluster", arguments={})
    requested(module(tmp_path, BESIDE.format(image="me/torch:1")).train, "cluster", arguments={})
    assert "me/torch:1 must have it installed" in caplog.text


def closure():
    value = 1

    def train():
        return value

    return train


class Trainer:
    def train(self):
        pass


async def coroutine():
    pass


def first(steps, /):
    pass


def many(*steps):
    pass


@pytest.mark.parametrize(
    ("function", "fields", "parts"),
    [
        (lambda: 0, {}, ["lambda", "with `def` at the top level"]),
        (closure(), {}, ["inside another function", "pass what it needs as arguments"]),
        (Trainer.train, {}, ["a method"]),
        (coroutine, {}, ["coroutine"]),
        (first, {}, ["takes steps by position only", "remove the `/` or `*`"]),
        (many, {}, ["takes steps by position only"]),
        (functools.partial(first, 1), {}, ["not a Python function"]),
        (len, {}, ["not a Python function"]),
        (inspect.cleandoc, {"colour": 8}, ["there is no field 'colour'", "trainingjob.md"]),
        (inspect.cleandoc, {"node": 8}, ["there is no field 'node'", "did you mean nodes?"]),
        (inspect.cleandoc, {"command": ["x"]}, ["'command'", "the function is what is run"]),
    ],
)
def test_a_function_that_cannot_be_put_into_a_job_is_rejected_by_the_decorator(function, fields, parts):
    with pytest.raises(ty.TorchYardError) as error:
        ty.job(**fields)(function)
    assert all(part in str(error.value) for part in parts), str(error.value)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({}, ["missing a required argument: 'steps'", "it takes (steps"]),
        ({"steps": 1, "lr": 2}, ["unexpected keyword argument 'lr'", "it takes (steps"]),
        ({"steps": object()}, ["cannot be written as JSON", "pass strings, numbers"]),
        ({"steps": float("inf")}, ["cannot be written as JSON"]),
        ({"steps": "x" * 20_000}, ["20013 characters of JSON, at most 16384", "pass the path"]),
    ],
)
def test_arguments_that_cannot_travel_are_rejected(tmp_path, arguments, parts):
    with pytest.raises(ty.TorchYardError) as error:
        requested(module(tmp_path, MODULE).My_train, "local", arguments=arguments)
    assert all(part in str(error.value) for part in parts), str(error.value)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (f"x = '{'x' * MAX_SCRIPT_BYTES}'", "a job carries at most 60 KiB"),
        ("def late():\n    from . import x", "a relative import"),
    ],
)
def test_a_module_that_cannot_travel_is_rejected(tmp_path, line, part):
    train = module(tmp_path, f"import torchyard as ty\n{line}\n@ty.job\ndef train(): pass\n").train
    with pytest.raises(ty.TorchYardError, match=part):
        requested(train, "local", arguments={})
