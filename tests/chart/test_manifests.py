"""Plain YAML for people without Helm: the chart's objects, nothing secret, and nothing that takes the jobs along."""

import re
import ssl
import subprocess
import sys

import pytest
import yaml
from tests.chart.test_tls import agent, shake_hands
from tests.support.charts import HELM, NAMESPACE, ROOT, needs_helm, rendered
from tests.support.waiting import DEADLINE

from torchyard.api.crd import crd
from torchyard.sweeps.crd import sweep_crd


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    environment = {"PATH": f"{HELM.rpartition('/')[0]}:/usr/bin:/bin", "HOME": str(folder)}
    argv = [sys.executable, str(ROOT / "hack/manifests.py"), str(folder)]
    subprocess.run(argv, env=environment, check=True, capture_output=True, timeout=DEADLINE)
    return {path.name: list(yaml.safe_load_all(path.read_text())) for path in folder.glob("*.yaml")}


@needs_helm
def test_it_is_what_the_chart_installs(written):
    def named(documents):
        return {(document["kind"], document["metadata"]["name"]): document.get("spec") for document in documents}

    values = {"tls": {"existingSecret": "torchyard-intake-tls"}}
    chart = named(document for document in rendered(values) if document["kind"] != "Pod")
    assert written["crd.yaml"] == [crd(), sweep_crd()]
    for definition in written["crd.yaml"]:
        chart.pop(("CustomResourceDefinition", definition["metadata"]["name"]))
    space, *operator = written["operator.yaml"]
    assert space["metadata"]["name"] == NAMESPACE
    assert named(operator) == chart


@needs_helm
def test_no_key_and_no_word_of_helm_is_in_it(written):
    for document in written["operator.yaml"]:
        assert document["kind"] != "Secret"
        assert "elm" not in str(document["metadata"])


@pytest.mark.skipif(
    ssl.OPENSSL_VERSION_INFO < (3,),
    reason="OpenSSL below 3: use a Python with a newer one",
)
def test_the_certificate_of_the_documentation_is_accepted_by_agents(tmp_path):
    text = (ROOT / "docs/installation.md").read_text()
    (command,) = re.findall(r"^(openssl req (?:.*\\\n)+.*)$", text, re.MULTILINE)
    words = command.replace("\\\n", " ").split()
    try:
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=DEADLINE)
    except FileNotFoundError:
        pytest.skip("no openssl on PATH (Debian, Ubuntu: apt-get install openssl)")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    own = (tmp_path / "tls.crt").read_bytes()
    shake_hands(server, agent(own), f"torchyard-intake.{NAMESPACE}.svc")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, agent(own), "elsewhere")
