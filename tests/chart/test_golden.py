"""What a release consists of: one golden file a case, the values above, the objects below.

`TORCHYARD_WRITE_GOLDEN=1 pytest tests/chart/test_golden.py` writes the objects again; read the difference, then commit.
"""

import json
import os
from pathlib import Path

import pytest
import yaml
from kubernetes.client import models
from tests.support.charts import CHART, ROOT, documents_of, helm, needs_helm, one, rendered, told

from torchyard.api.crd import crd
from torchyard.api.profiles.crd import profile_crd
from torchyard.cli.commands.intake_probe import LABELS as DOCTOR
from torchyard.kubernetes.manifests import names
from torchyard.sweeps.crd import sweep_crd

pytestmark = needs_helm

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.yaml"))
# Kinds that come with the Prometheus operator; the Kubernetes client does not know them.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "CustomResourceDefinition"}


def values_of(path):
    return documents_of(path.read_text())[0] or {}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden(path):
    objects = [told(document) for document in rendered(values_of(path))]
    if os.environ.get("TORCHYARD_WRITE_GOLDEN"):
        values = path.read_text().partition("---\n")[0]
        path.write_text(f"{values}---\n{yaml.safe_dump_all(objects, sort_keys=False, width=160)}")
    else:
        assert objects == documents_of(path.read_text())[1:]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_field_is_one_that_kubernetes_knows(path):
    """An API server drops a misspelt field without a word; the models of its client refuse it."""
    for document in rendered(values_of(path)):
        if document["kind"] not in FOREIGN:
            model = getattr(models, f"V1{document['kind']}")
            model.model_validate({name: value for name, value in document.items() if name != "data"})


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_lint_finds_nothing(path):
    done = helm("lint", "--strict", CHART, values=values_of(path))
    assert done.returncode == 0, done.stdout


def test_the_chart_installs_the_generated_resources():
    assert rendered(show="templates/crds.yaml") == [crd(), sweep_crd(), profile_crd()]


def test_the_resource_can_be_left_out_and_released():
    kinds = {document["kind"] for document in rendered({"crds": {"install": False}})}
    assert "CustomResourceDefinition" not in kinds
    documents = rendered({"crds": {"keep": False}}, show="templates/crds.yaml")
    assert all("annotations" not in document["metadata"] for document in documents)
    assert [document["spec"] for document in documents] == [
        each["spec"] for each in (crd(), sweep_crd(), profile_crd())
    ]


def test_two_releases_share_no_name():
    """Operators with namespaces of their own live side by side."""

    def names(release):
        values = {"watchNamespaces": [release], "crds": {"install": False}}
        documents = rendered(values, release=release)
        return {(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents}

    assert not names("red") & names("blue")


def test_a_long_release_name_still_gives_names_that_kubernetes_takes():
    for document in rendered(release="r" * 53):
        assert len(document["metadata"]["name"]) <= 63


def test_the_operator_makes_a_network_policy_for_every_job_where_it_may():
    def operator(values):
        documents = rendered(values)
        args = one(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
        rights = [each for role in documents if role["kind"] in {"Role", "ClusterRole"} for each in role["rules"]]
        policies = [each for each in rights if "networkpolicies" in each["resources"]]
        return [word for word in args if word.startswith("--network-peers")], len(policies)

    assert operator({}) == (["--network-peers=[]"], 1)
    peers = {"jobsFrom": [{"podSelector": {"matchLabels": {"app": 'a "b"'}}}]}
    (flag,), granted = operator({"watchNamespaces": ["red", "blue"], "networkPolicy": peers})
    assert json.loads(flag.partition("=")[2]) == peers["jobsFrom"]
    assert granted == 2
    assert operator({"networkPolicy": {"jobs": False}}) == ([], 0)


def test_the_network_policy_admits_all_that_must_reach_the_intake():
    """Training pods and the pod of `torchyard doctor`, in any namespace, and the test pod; no other."""
    documents = rendered({"networkPolicy": {"enabled": True}})
    policies = {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "NetworkPolicy"}
    assert (policies["torchyard-test"]["policyTypes"], policies["torchyard-test"]["ingress"]) == (["Ingress"], [])
    (to_intake,) = (rule["from"] for rule in policies["torchyard"]["ingress"] if rule["ports"] == [{"port": "intake"}])

    def admitted(labels, *, elsewhere):
        peers = (peer["podSelector"] for peer in to_intake if not elsewhere or "namespaceSelector" in peer)
        return any(
            all(labels.get(name) == value for name, value in peer.get("matchLabels", {}).items())
            and all(labels.get(each["key"]) in each["values"] for each in peer.get("matchExpressions", ()))
            for peer in peers
        )

    assert admitted({names.MANAGED_BY: names.MANAGER}, elsewhere=True)
    assert admitted(DOCTOR, elsewhere=True)
    assert admitted(one(documents, "Pod")["metadata"]["labels"], elsewhere=False)
    assert not admitted({"app": "else"}, elsewhere=False)


def test_versions_agree():
    meta = yaml.safe_load((CHART / "Chart.yaml").read_text())
    scope = {}
    exec((ROOT / "operator/torchyard/__init__.py").read_text(), scope)
    assert meta["appVersion"] == scope["__version__"]
    assert f"ARG VERSION={scope['__version__']}\n" in (ROOT / "Dockerfile").read_text()
