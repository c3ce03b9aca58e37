"""The places of the page: this machine and the contexts of the kubeconfig, with the namespaces of their jobs."""

import json

import pytest

from torchyard.client.location import HERE, Location
from torchyard.ui.places import places_of, within

CONFIG = {
    "current-context": "arn:aws:eks:eu:1:cluster/prod",
    "contexts": [{"name": "dev", "context": {}}, {"name": "arn:aws:eks:eu:1:cluster/prod", "context": {}}],
}
PROD = "arn:aws:eks:eu:1:cluster/prod"


@pytest.fixture(autouse=True)
def kubeconfig(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "config").write_text(json.dumps(CONFIG))
    return tmp_path / "config"


def test_the_current_context_comes_first_and_the_others_can_be_chosen():
    assert places_of(None, None) == {"here": HERE, PROD: Location("cluster"), "dev": Location("cluster", "dev")}
    assert list(places_of("dev", "team").items())[1] == ("dev", Location("cluster", "dev", "team"))


@pytest.mark.parametrize("text", ["", "[]", "contexts: 3", "{", "contexts: [{}]\ncurrent-context: dev\n"])
def test_a_damaged_kubeconfig_leaves_a_place_that_says_what_is_wrong_with_it(kubeconfig, text):
    kubeconfig.write_text(text)
    assert list(places_of(None, None)) == ["here", "cluster"]
    kubeconfig.unlink()
    assert list(places_of(None, None)) == ["here"]


def test_a_job_of_a_cluster_is_named_with_its_namespace():
    cluster = Location("cluster", "dev")
    assert within(cluster, "team/job") == (Location("cluster", "dev", "team"), "job")
    assert within(cluster, "job") == (cluster, "job")
    assert within(HERE, "a/b") == (HERE, "a/b")
