"""What `import torchyard` offers, and what it does not import."""

import inspect
import json
import subprocess
import sys

import pytest

import torchyard as ty
from torchyard.client import sync

NEVER = {"torch", "kopf", "kubernetes", "optuna", "numpy", "transformers"}
"""By no name of the API, whatever is installed."""
LATER = NEVER | {"aiohttp", "asyncio", "msgspec", "yaml", "rich"}
"""Only once a name is used."""


def imported(source: str) -> set[str]:
    probe = f"{source}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("source", "absent"), [("import torchyard", LATER), ("from torchyard import *\nfrom torchyard.aio import *", NEVER)]
)
def test_an_import_brings_nothing_that_is_slow(source, absent):
    assert imported(source) & absent == set()


def test_the_exported_names_are_these():
    assert sorted(ty.__all__) == [
        "Artifact", "Comparison", "Difference", "Event", "Explanation", "InvalidJobError", "Job", "JobFailedError",
        "JobFunction", "LogLine", "MetricsTable", "NotFoundError", "ObjectMeta", "Sweep", "TorchYardError",
        "TrainingJob", "TrainingJobSpec", "TrainingJobStatus", "TrainingSweep", "TrainingSweepSpec", "TrialsTable",
        "aio", "diff", "get_job", "get_sweep", "job", "jobs", "run", "submit", "sweep",
    ]  # fmt: skip
    assert all(hasattr(ty, name) for name in ty.__all__)
    assert set(ty.__all__) <= set(dir(ty))
    with pytest.raises(AttributeError, match="'torchyard' has no attribute 'train'"):
        _ = ty.train


def parameters(function):
    """Names, kinds and defaults; their types differ where a job is one."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(
    ("here", "there"),
    [(ty.Job, ty.aio.Job("a", "u")), (ty.Sweep, ty.aio.Sweep("a", "u"))],
    ids=["Job", "Sweep"],
)
def test_aio_has_the_same_methods_with_the_same_parameters(here, there):
    names = {name for name in vars(here) if not name.startswith("_")}
    assert {name for name in vars(type(there)) if not name.startswith("_")} <= names
    for name in names:
        assert hasattr(there, name), f"torchyard.aio has no {name}"
        if inspect.isfunction(vars(here)[name]):
            assert parameters(getattr(there, name)) == parameters(vars(here)[name])[1:], name


def test_aio_has_the_same_functions_with_the_same_parameters():
    for name in set(ty.aio.__all__) - {"Job", "Sweep"}:
        assert parameters(getattr(sync, name)) == parameters(getattr(ty.aio, name)), name


def test_the_call_for_sweeps_survives_imports_from_the_package_of_its_name():
    source = """
import torchyard.sweeps.spec
import torchyard as ty
from torchyard import sweep
import torchyard.sweeps.decide as decide
try:
    ty.sweep({"metadata": {"name": "a"}})
except ty.InvalidJobError:
    print(sweep is ty.sweep, decide.__name__)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.stdout == "True torchyard.sweeps.decide\n", done.stderr
