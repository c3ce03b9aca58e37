"""The certificate that the chart makes: agents of any Python accept it for the intake's name, and for no other."""

import base64
import ssl
from datetime import timedelta

import pytest
from tests.support.charts import NAMESPACE, needs_helm, one, rendered

from torchyard.app.certificate import renew

pytestmark = needs_helm

HOST = f"torchyard-intake.{NAMESPACE}.svc"


@pytest.fixture(scope="module")
def secrets():
    documents = rendered({"crds": {"install": False}}, show="templates/tls.yaml")
    authority = one(documents, "Secret")
    assert authority["metadata"]["name"] == "torchyard-ca"
    return {key: base64.b64decode(text) for key, text in authority["data"].items()}


@pytest.fixture
def server(secrets, tmp_path):
    """What the operator loads from /tls, as the container beside it writes it."""
    authority = tmp_path / "ca"
    authority.mkdir()
    for name, content in secrets.items():
        (authority / name).write_bytes(content)
    (container,) = pod_of(one(rendered(), "Deployment"))["spec"]["initContainers"]
    host = next(word.removeprefix("--host=") for word in container["args"] if word.startswith("--host="))
    renew(authority, tmp_path, host, timedelta(days=90))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    return context


def agent(trusted):
    """What an agent trusts, as strict as Python 3.13 is by default."""
    context = ssl.create_default_context(cadata=trusted.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def shake_hands(server, client, name):
    """A whole handshake in memory; raises what the client raises."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=name),
    ]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                pass


@pytest.mark.parametrize("name", [HOST, f"{HOST}.cluster.local"])
def test_an_agent_accepts_it_for_its_configured_name(server, secrets, name):
    shake_hands(server, agent(secrets["tls.crt"]), name)


def test_an_agent_refuses_it_for_another_name(server, secrets):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(server, agent(secrets["tls.crt"]), "torchyard-intake.elsewhere.svc")


def test_the_key_of_the_authority_is_not_mounted_into_the_operator():
    """An attacker inside the operator cannot sign certificates."""
    documents = rendered()
    spec = pod_of(one(documents, "Deployment"))["spec"]
    (signer,), (operator,) = spec["initContainers"], spec["containers"]
    assert {mount["name"] for mount in signer["volumeMounts"]} == {"ca", "tls"}
    assert {mount["name"] for mount in operator["volumeMounts"]} == {"tls", "tmp"}
    (ca,) = (volume["secret"] for volume in spec["volumes"] if "secret" in volume)
    assert ca["secretName"] == "torchyard-ca"
    (of_test,) = (volume["secret"] for volume in pod_of(one(documents, "Pod"))["spec"]["volumes"])
    assert of_test["items"] == [{"key": "tls.crt", "path": "ca.crt"}]


def test_the_authority_outlives_an_uninstall():
    """Running pods carry it: what is installed next must be able to speak to them."""
    authority = one(rendered(show="templates/tls.yaml"), "Secret", "torchyard-ca")
    assert authority["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_a_certificate_from_elsewhere_replaces_ours():
    documents = rendered({"tls": {"existingSecret": "mine"}})
    assert "Secret" not in {document["kind"] for document in documents}
    volumes = pod_of(one(documents, "Deployment"))["spec"]["volumes"]
    assert "mine" in {volume.get("secret", {}).get("secretName") for volume in volumes}


def pod_of(document):
    return document["spec"]["template"] if document["kind"] == "Deployment" else document
