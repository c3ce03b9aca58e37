"""The chart as Helm renders it. The tests that need Helm skip without it; `make kind-up` leaves one in the cache."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml
from tests.support.waiting import DEADLINE

from torchyard.api.crd import crd
from torchyard.api.profiles.crd import profile_crd
from torchyard.sweeps.crd import sweep_crd

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/torchyard"
NAMESPACE = "torchyard-system"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchyard/kind/programs"
HELM = shutil.which("helm") or next(map(str, sorted(_CACHE.glob("helm-*/helm"))), None)

needs_helm = pytest.mark.skipif(HELM is None, reason="no helm on PATH or in the cache: `make kind-up` builds one")


def helm(*arguments, values):
    """Run helm with a values file."""
    return _helm(tuple(map(str, arguments)), yaml.safe_dump(values))


@cache
def _helm(arguments, values):
    argv = [HELM, *arguments, "--values", "-"]
    return subprocess.run(argv, input=values, capture_output=True, text=True, check=False, timeout=DEADLINE)


def rendered(values=None, release="torchyard", show=None):
    """Every object of the release, the API server's part in `lookup` not played."""
    only = ["--show-only", show] if show else []
    done = helm("template", release, CHART, "--namespace", NAMESPACE, *only, values=values or {})
    if done.returncode != 0:
        raise ValueError(done.stderr)
    return [document for document in documents_of(done.stdout) if document]


def documents_of(text):
    """Return the documents of a YAML stream, read by libyaml: in Python, the definitions of resources take seconds."""
    return list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def one(documents, kind, name=None):
    """The only object of a kind, or of a kind and name."""
    (found,) = (d for d in documents if d["kind"] == kind and name in (None, d["metadata"]["name"]))
    return found


def told(document):
    """An object without what is random or proved elsewhere."""
    if document["kind"] == "Secret":
        return document | {"data": dict.fromkeys(document["data"], "generated again")}
    if document["kind"] == "CustomResourceDefinition":
        of_kind = {each["metadata"]["name"]: each["spec"] for each in (crd(), sweep_crd(), profile_crd())}
        assert document["spec"] == of_kind[document["metadata"]["name"]]
        return document | {"spec": "as `torchyard crd` prints it"}
    if document["kind"] == "ConfigMap":
        assert document["data"] == {"torchyard.json": (CHART / "files/dashboard.json").read_text()}
        return document | {"data": {"torchyard.json": "files/dashboard.json"}}
    if document["kind"] == "Pod":
        (container,) = document["spec"]["containers"]
        assert container["command"][2] == (CHART / "files/installation_test.py").read_text()
        container["command"][2] = "files/installation_test.py"
    return document
