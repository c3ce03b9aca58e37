"""Whether a name means this machine or a cluster."""

import pytest

from torchyard.api.resource import read_job
from torchyard.cli.main import command_first, parser_of
from torchyard.client.location import on_cluster
from torchyard.local.run import run_folder
from torchyard.local.runs import create_run


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A machine with a run called `local`, and a way to tell it of a cluster."""
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    create_run(run_folder("local"), read_job({"metadata": {"name": "local"}, "spec": {"script": "pass"}}), tmp_path)

    def configure():
        (tmp_path / "config").touch()
        monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/gone:{tmp_path}/config")

    return configure


def test_without_a_kubeconfig_everything_is_here(here):
    assert not on_cluster("local", None, None)
    assert not on_cluster("other", None, None)
    assert not on_cluster(None, None, None)


def test_a_run_of_this_machine_comes_before_a_job_of_the_cluster(here):
    here()
    assert not on_cluster("local", None, None)
    assert on_cluster("other", None, None)
    assert not on_cluster(None, None, None), "there are runs to list here"


@pytest.mark.parametrize(("context", "namespace"), [("staging", None), (None, "team"), ("staging", "team")])
def test_who_names_a_context_or_a_namespace_means_the_cluster(here, context, namespace):
    assert on_cluster("local", context, namespace)
    assert on_cluster(None, context, namespace)


def test_in_a_pod_the_cluster_is_known_without_a_file(here, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert on_cluster("other", None, None)


@pytest.mark.parametrize(
    "words",
    [
        ["-n", "team", "ps", "-o", "json"],
        ["--namespace=team", "ps", "-o", "json"],
        ["ps", "-n", "team", "-o", "json"],
    ],
)
def test_namespace_and_context_may_stand_before_the_command_as_kubectl_takes_them(words):
    name, *rest = command_first(["--context", "staging", *words])
    assert name == "ps"
    given = parser_of("ps").parse_args(rest)
    assert (given.namespace, given.context, given.output) == ("team", "staging", "json")
