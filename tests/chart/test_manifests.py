"""Plain YAML for clusters without Helm: the objects of the chart, and nothing that is secret."""

import base64
import re
import ssl
import subprocess
from datetime import timedelta

import pytest
from tests.chart.test_tls import agent, shake_hands
from tests.support.charts import CHART, NAMESPACE, ROOT, documents_of, helm, needs_helm, rendered
from tests.support.waiting import DEADLINE

from torchyard.app.certificate import renew
from torchyard.client.installation.apply import identity
from torchyard.client.installation.manifests import Images, authority_secret, definitions, operator_objects

PLAIN = ROOT / "charts/plain.yaml"
INSTALLERS = {"app.kubernetes.io/managed-by", "helm.sh/chart"}


@needs_helm
def test_the_file_is_what_the_chart_installs_by_default_without_resources_and_ca():
    """`make manifests` writes it again."""
    assert documents_of(PLAIN.read_text()) == [
        without_helm(each) for each in rendered({"crds": {"install": False}}) if each["kind"] not in {"Secret", "Pod"}
    ]


@needs_helm
@pytest.mark.parametrize(
    "image", ["registry:5000/a/operator:1", f"operator@sha256:{'0' * 64}", f"r.example.com/o:1@sha256:{'0' * 64}", ""]
)
def test_another_namespace_and_other_images_are_what_helm_renders_for_them(image):
    images = Images(image, image)
    sets = [word for value in images.values for word in ("--set-string", value)]
    done = helm("template", "torchyard", CHART, "--namespace", "elsewhere", "--no-hooks", *sets, values={})
    chart = {
        identity(each): without_helm(each) for each in documents_of(done.stdout) if each and each["kind"] != "Secret"
    }
    for definition in definitions():
        assert chart.pop(identity(definition))["spec"] == definition["spec"]
    assert {identity(each): without_helm(each) for each in operator_objects("elsewhere", images)} == chart


def test_no_key_and_no_word_of_helm_is_in_it():
    for document in documents_of(PLAIN.read_text()):
        assert document["kind"] != "Secret"
        assert "elm" not in str(document["metadata"])


def without_helm(document):
    """An object without the labels that name its installer."""
    labels = {name: text for name, text in document["metadata"].get("labels", {}).items() if name not in INSTALLERS}
    return document | {"metadata": document["metadata"] | {"labels": labels}}


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
    signed_by(tmp_path)


def test_the_ca_of_torchyard_install_is_accepted_by_agents(tmp_path):
    for name, text in authority_secret(NAMESPACE)["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    signed_by(tmp_path)


def signed_by(authority):
    """Have the container beside the operator sign a certificate with a CA, and agents that trust the CA connect."""
    folder = authority / "signed"
    folder.mkdir()
    renew(authority, folder, f"torchyard-intake.{NAMESPACE}.svc", timedelta(days=90))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    trusted = (authority / "tls.crt").read_bytes()
    shake_hands(server, agent(trusted), f"torchyard-intake.{NAMESPACE}.svc")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, agent(trusted), "elsewhere")
