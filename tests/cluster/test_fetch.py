"""`torchyard fetch` and `profile` against a cluster: out of a pod that runs, and out of a claim that no pod uses."""

import gzip
import json

import pytest
from tests.cluster.test_command_line import EXAMPLE, PATIENT, torchyard  # noqa: F401 - a fixture
from tests.support.cluster import faults
from tests.support.cluster.jobs import Jobs
from tests.support.cluster.operators import TRAINER_IMAGE, until
from tests.support.cluster.training import PAUSES, mounted

from torchyard.kubernetes.manifests import names

CLAIM = "runs"
ON_CLAIM = ("--set", f"checkpoint.volume={{claim: {CLAIM}}}", "--set", "nodes=1")


@pytest.fixture
async def claim(api, namespace):
    """A claim of the cluster's default storage class."""
    body = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "200Mi"}}},
    }
    await api.request("POST", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", body=body)


async def has_written(api, namespace, pattern) -> bool:
    """Whether the pod of the job has such a file: asked within it, which costs less than the command."""
    script = f'for file in {names.CHECKPOINTS}/cvrp/{pattern}; do test -s "$file" && echo there; done; :'
    pod, _ = await Jobs(api, namespace).member("cvrp", 0)
    return "there" in await faults.execute(namespace, pod, "sh", "-c", script)


@pytest.mark.usefixtures("operator", "claim")
async def test_what_a_job_wrote_comes_home_while_it_runs_and_while_it_is_suspended(torchyard, api, namespace, tmp_path):  # noqa: F811 - the fixture
    torchyard.starts |= {"fetch", "profile"}
    # It trains as long as the commands take, and is not to take the processor from them.
    where = await mounted(Jobs(api, namespace), {"patient.py": PAUSES})
    fields = {**where, "trainer.name": "patient:Patient", "env": [{"name": "PAUSE", "value": "0.5"}]}
    slow = [word for field, value in fields.items() for word in ("--set", f"{field}={json.dumps(value)}")]
    steps = ("--set", "trainer.params.steps=100000", "--set", "trainer.params.logEvery=1")
    await torchyard("submit", EXAMPLE, *ON_CLAIM, *steps, *slow, "--set", f"image={TRAINER_IMAGE}")
    await torchyard("wait", "cvrp", "--for", "running", *PATIENT)
    curves = tmp_path / "curves.jsonl"
    await until(lambda: has_written(api, namespace, "metrics.jsonl"), why=lambda: "it trains and writes no curves")
    await torchyard("fetch", "cvrp", "metrics.jsonl", "-o", curves)
    assert json.loads(curves.read_text().splitlines()[0])["step"] >= 1
    listed = await torchyard("fetch", "cvrp")
    assert "metrics.jsonl" in [line.split()[0] for line in listed.out.splitlines()]
    assert f" -n {namespace}" in listed.err
    missing = await torchyard("fetch", "cvrp", "export/web", "-o", tmp_path / "web", code=1)
    assert "it has no export/web; it has " in missing.err
    assert "metrics.jsonl" in missing.err

    asked = await torchyard("profile", "cvrp", "trace", "--steps", 2)
    assert "asked 1 pod of cvrp for trace" in asked.out

    await until(lambda: has_written(api, namespace, "profile/trace-*.json.gz"), why=lambda: "no trace was written")
    profile = tmp_path / "profile"
    await torchyard("fetch", "cvrp", "profile", "-o", profile)
    (trace,) = profile.iterdir()
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]

    await torchyard("suspend", "cvrp")
    await torchyard("wait", "cvrp", "--for", "suspended", *PATIENT)

    async def no_pods() -> bool:
        return not json.loads(await api.request("GET", f"/api/v1/namespaces/{namespace}/pods"))["items"]

    await until(no_pods)
    await torchyard("fetch", "cvrp", "latest", "-o", tmp_path / "latest")
    assert (tmp_path / "latest").read_text().startswith("step-")
    await torchyard("delete", "cvrp")
    await torchyard("wait", "cvrp", "--for", "deleted", *PATIENT)


@pytest.mark.usefixtures("operator", "claim")
async def test_a_pod_of_its_own_reads_the_claim_of_a_job_that_has_ended(torchyard, api, namespace, tmp_path):  # noqa: F811 - the fixture
    await torchyard("submit", EXAMPLE, *ON_CLAIM, "--set", "trainer.params.steps=20", "--set", "export={}")
    await torchyard("wait", "cvrp", *PATIENT)
    job = json.loads((await torchyard("status", "cvrp", "-o", "json")).out)
    conditions = {each["type"]: each["status"] for each in job["status"]["conditions"]}
    assert conditions["ExportVerified"] == "True"
    await torchyard("fetch", "cvrp", "export/safetensors", "-o", tmp_path / "weights")
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["manifest.json", "model.safetensors"]
    pods = json.loads(await api.request("GET", f"/api/v1/namespaces/{namespace}/pods"))["items"]
    assert not [pod["metadata"]["name"] for pod in pods if "fetch" in pod["metadata"]["name"]]
