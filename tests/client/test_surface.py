"""What `import torchyard` offers, and what it does not import."""

import inspect
import json
import subprocess
import sys

import pytest

import torchyard as ty

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
        "JobFunction", "LogLine", "MetricsTable", "NotFoundError", "ObjectMeta", "TorchYardError", "TrainingJob",
        "TrainingJobSpec", "TrainingJobStatus", "aio", "diff", "get_job", "job", "jobs", "run", "submit",
    ]  # fmt: skip
    assert all(hasattr(ty, name) for name in ty.__all__)
    assert set(ty.__all__) <= set(dir(ty))
    with pytest.raises(AttributeError, match="'torchyard' has no attribute 'train'"):
        _ = ty.train


def parameters(function):
    """Names, kinds and defaults; their types differ where a job is one."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


def test_aio_has_the_same_functions_with_the_same_parameters():
    for name in set(ty.aio.__all__) - {"Job"}:
        assert parameters(getattr(ty, name)) == parameters(getattr(ty.aio, name)), name
    for name, member in vars(ty.Job).items():
        if name.startswith("_"):
            continue
        job = ty.aio.Job("a", "u")
        assert hasattr(job, name), f"torchyard.aio.Job has no {name}"
        if inspect.isfunction(member):
            assert parameters(getattr(job, name)) == parameters(member)[1:], name
    assert {name for name in vars(ty.aio.Job) if not name.startswith("_")} <= set(vars(ty.Job))
