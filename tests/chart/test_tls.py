"""The certificate that the chart makes: agents of any Python accept it for the intake's name, and for no other."""

import base64
import ssl

import pytest
from tests.support.charts import NAMESPACE, needs_helm, one, rendered

pytestmark = needs_helm

HOST = f"torchyard-intake.{NAMESPACE}.svc"


@pytest.fixture(scope="module")
def secrets():
    documents = rendered({"crds": {"install": False}}, show="templates/tls.yaml")
    return {
        name: {key: base64.b64decode(text) for key, text in one(documents, "Secret", name)["data"].items()}
        for name in ("torchyard-ca", "torchyard-intake-tls")
    }


@pytest.fixture
def server(secrets, tmp_path):
    """What the operator loads from /tls."""
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_bytes(secrets["torchyard-intake-tls"][name])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    return context


def agent(secrets):
    """What an agent trusts, as strict as Python 3.13 is by default."""
    context = ssl.create_default_context(cadata=secrets["torchyard-intake-tls"]["ca.crt"].decode())
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
def test_an_agent_accepts_it_for_the_name_it_is_told(server, secrets, name):
    shake_hands(server, agent(secrets), name)


def test_an_agent_refuses_it_for_another_name(server, secrets):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(server, agent(secrets), "torchyard-intake.elsewhere.svc")


def test_the_key_of_the_authority_is_not_mounted(secrets):
    """Whoever breaks into the operator must not be able to sign certificates."""
    documents = rendered()
    volumes = [volume for kind in ("Deployment", "Pod") for volume in pod_of(one(documents, kind))["spec"]["volumes"]]
    assert {volume["secret"]["secretName"] for volume in volumes if "secret" in volume} == {"torchyard-intake-tls"}
    assert secrets["torchyard-ca"]["tls.key"] not in secrets["torchyard-intake-tls"].values()


def test_the_authority_outlives_an_uninstall():
    """Running pods carry it: what is installed next must be able to speak to them."""
    authority = one(rendered(show="templates/tls.yaml"), "Secret", "torchyard-ca")
    assert authority["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_a_certificate_from_elsewhere_leaves_none_of_ours():
    documents = rendered({"tls": {"existingSecret": "mine"}})
    assert "Secret" not in {document["kind"] for document in documents}
    volumes = pod_of(one(documents, "Deployment"))["spec"]["volumes"]
    assert "mine" in {volume.get("secret", {}).get("secretName") for volume in volumes}


def pod_of(document):
    return document["spec"]["template"] if document["kind"] == "Deployment" else document
