"""A job whose inputs come from an HTTPS server of this machine: fetched once for both pods, recorded, and refused."""

import hashlib
import json
import ssl

import pytest
import trustme
from tests.support.agents.sources import WebServer, serving

pytestmark = pytest.mark.e2e

READ = "import os, sys; print(open(sys.argv[1]).read(), os.environ['TORCHYARD_INPUT_TRAIN_ROWS'] in sys.argv[1])"


@pytest.fixture
def web(torchyard, tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    server = WebServer()
    server.socket, server.scheme = context.wrap_socket(server.socket, server_side=True), "https"
    server.files["/rows.txt"] = b"forty-two"
    torchyard.env["SSL_CERT_FILE"] = str(tmp_path / "ca.pem")
    with serving(server):
        yield server


def test_inputs_are_fetched_once_for_both_pods_recorded_and_rejected(torchyard, web):
    digest = hashlib.sha256(b"forty-two").hexdigest()
    job = {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "rows"},
        "spec": {
            "nodes": 2,
            # Under torchrun, so that the agent also hears of PyTorch's import meanwhile.
            "command": ["torchrun", "read.py", "${inputs.train-rows}/rows.txt"],
            "inputs": [{"name": "train-rows", "from": f"{web.url}/rows.txt", "sha256": digest, "path": "/data"}],
        },
    }
    (torchyard.folder / "job.yaml").write_text(json.dumps(job))
    (torchyard.folder / "read.py").write_text(READ)
    ran = torchyard("run", "job.yaml")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("forty-two True") == 2
    assert len([1 for method, *_ in web.requests if method == "GET"]) == 1
    status = json.loads(torchyard("status", "rows", "-o", "json").stdout)["status"]
    (known,) = status["inputs"]
    assert (known["state"], known["revision"], known["bytes"]) == ("ready", digest, 9)
    record = json.loads((torchyard.home / "runs/rows/checkpoints/environment.json").read_text())
    assert record["inputs"] == {"train-rows": {"from": f"{web.url}/rows.txt", "revision": digest}}
    assert f"input     train-rows  ready  9 B  revision {digest[:12]}" in torchyard("status", "rows").stdout

    ran = torchyard("run", "job.yaml", "--name", "wrong", "--set", f"inputs[0].sha256={'f' * 64}")
    assert ran.returncode == 1
    where = f"input train-rows: rows.txt of {web.url}/rows.txt"
    assert f"{where} is not what it should be: SHA-256 is {digest}" in ran.stderr
