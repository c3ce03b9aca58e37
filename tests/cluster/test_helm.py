"""The chart on a real cluster: a job trains on while the operator is upgraded, uninstalled and installed again."""

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml
from tests.support.cluster.faults import execute
from tests.support.cluster.jobs import counts
from tests.support.cluster.operators import AGENT_IMAGE, PATIENCE, TRAINER_IMAGE, until

from torchyard.api.crd import crd
from torchyard.kubernetes.client.api import APPLY_PATCH, MERGE_PATCH
from torchyard.kubernetes.client.errors import NotFound, Rejected

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/torchyard"
GOLDEN = sorted((ROOT / "tests/chart/golden").glob("*.yaml"))
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchyard/kind/programs"
HELM = shutil.which("helm") or next(map(str, sorted(CACHE.glob("helm-*/helm"))), None)
CRD_PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd()['metadata']['name']}"

# Long enough to outlive every act of the test; it takes no processor from what the test waits for.
LONG_JOB = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "long"},
    "spec": {"command": counts(steps=1_000_000, seconds=0.2), "metrics": {"interval": "1s"}},
}


@pytest.fixture
def helm(namespace):
    """What runs helm in the test's namespace and gives what it printed."""
    if HELM is None:
        pytest.skip("no helm on PATH or in the cache: `make kind-up` builds one")

    async def run(*words):
        process = await asyncio.create_subprocess_exec(
            *(HELM, *words, "--namespace", namespace), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, f"helm {' '.join(words)}\n{said.decode()}"
        return said.decode()

    return run


# What Prometheus does: it verifies the certificate, then sends its token.
SCRAPE = """
import http.client, ssl, sys
trust = ssl.create_default_context(cafile="/tls/ca.crt")
class Connection(http.client.HTTPSConnection):
    def connect(self):
        http.client.HTTPConnection.connect(self)
        self.sock = trust.wrap_socket(self.sock, server_hostname=sys.argv[1])
caller = Connection("127.0.0.1", 8443, context=trust)
caller.request("GET", "/metrics", headers={"Authorization": f"Bearer {sys.argv[2]}"} if sys.argv[2:] else {})
answer = caller.getresponse()
print(answer.status)
print(answer.read().decode())
"""


# What the proxy in front of the page does: it adds the token of a user.
PAGE = """
import http.client, ssl, sys
caller = http.client.HTTPSConnection("127.0.0.1", 8443, context=ssl._create_unverified_context())
caller.request("GET", sys.argv[2], headers={"Host": sys.argv[1], "Authorization": f"Bearer {sys.argv[3]}"})
print(caller.getresponse().status)
"""


@pytest.fixture
async def accounts(api, namespace):
    """Tokens of two service accounts: the first one may read metrics of a release once `bind` was called with it."""
    core, rbac = f"/api/v1/namespaces/{namespace}/serviceaccounts", "/apis/rbac.authorization.k8s.io/v1"
    bindings = f"{rbac}/clusterrolebindings"

    async def token(name):
        await api.request("POST", core, body={"metadata": {"name": name}})
        answer = await api.request("POST", f"{core}/{name}/token", body={"spec": {"expirationSeconds": 3600}})
        return json.loads(answer)["status"]["token"]

    async def bind(release):
        subject = {"kind": "ServiceAccount", "name": "prometheus", "namespace": namespace}
        role = {"apiGroup": rbac.split("/")[2], "kind": "ClusterRole", "name": f"{release}-metrics-reader"}
        named = {"metadata": {"name": f"{namespace}-metrics"}}
        await api.request("POST", bindings, body={**named, "subjects": [subject], "roleRef": role})

    yield await token("prometheus"), await token("stranger"), bind
    with contextlib.suppress(NotFound):
        await api.request("DELETE", f"{bindings}/{namespace}-metrics", body={})


@pytest.fixture
async def release(api, namespace, helm, tmp_path):
    """Install or upgrade one release, which manages only the namespace of the test.

    The TrainingJob resource belongs to it, as it would after `helm install`, and is given back afterwards.
    """
    name = f"torchyard-{namespace}"
    repository, _, tag = AGENT_IMAGE.rpartition(":")
    values = {
        "image": {"repository": repository, "tag": tag},
        "trainerImage": TRAINER_IMAGE,
        "watchNamespaces": [namespace],
        "rbac": {"aggregate": False},
        "resources": {"requests": {"cpu": "10m"}},
        "metrics": {"enabled": True},
        "page": {"enabled": True},
    }
    before = json.loads(await api.request("GET", CRD_PATH))["metadata"]

    async def run(verb, **changed):
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values | changed))
        words = (verb, name, str(CHART), "--values", str(file))
        # The resource may be another release's: Helm 4, which applies on the server's side, has to be told so twice.
        force = ["--take-ownership", *(["--force-conflicts"] if "v4" in await helm("version", "--short") else [])]
        await helm(*words, *force, "--wait", "--timeout", f"{PATIENCE:.0f}s")
        return name

    yield run
    await helm("uninstall", name, "--ignore-not-found", "--wait", "--timeout", f"{PATIENCE:.0f}s")
    after = json.loads(await api.request("GET", CRD_PATH))["metadata"]
    back = {
        field: dict.fromkeys(after.get(field) or {}) | (before.get(field) or {}) for field in ("labels", "annotations")
    }
    await api.request("PATCH", CRD_PATH, body={"metadata": back}, content_type=MERGE_PATCH)


class Installation:
    """What a user could look up in the namespace of the test."""

    def __init__(self, api, namespace):
        self.api, self.namespace = api, namespace
        self.core = f"/api/v1/namespaces/{namespace}"
        self.jobs = f"/apis/torchyard.dev/v1alpha1/namespaces/{namespace}/trainingjobs"

    async def get(self, path):
        return json.loads(await self.api.request("GET", path))

    async def pods(self, label):
        return (await self.get(f"{self.core}/pods?labelSelector={label}"))["items"]

    async def operators(self):
        pods = await self.pods("app.kubernetes.io/component=operator")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    async def no_operators(self):
        return await self.pods("app.kubernetes.io/component=operator") == []

    async def one_of_two_leads(self):
        """The pods of before are gone, and the Service has one of the two to lead to."""
        pods = await self.pods("app.kubernetes.io/component=operator")
        return [pod["metadata"]["labels"].get("torchyard.dev/leader", "") for pod in pods] in (
            ["true", ""],
            ["", "true"],
        )

    async def secret(self, name):
        data = (await self.get(f"{self.core}/secrets/{name}"))["data"]
        return {key: base64.b64decode(text) for key, text in data.items()}

    async def trains_on(self):
        """The step of the status moves, so agent and operator talk to each other."""

        async def step():
            return (await self.get(f"{self.jobs}/long")).get("status", {}).get("progress", {}).get("step", 0)

        seen = await step()

        async def moved():
            return await step() > seen

        await until(moved, why=lambda: f"step {seen} and no further")

    async def identity(self):
        """What nothing may change while the job runs: the job, its pod, the round, the restarts."""
        job = await self.get(f"{self.jobs}/long")
        (pod,) = await self.pods("torchyard.dev/job=long")
        status = job["status"]
        assert status["state"] == "Running", status
        restarts = status.get("restarts", {}).get("total", 0)
        return job["metadata"]["uid"], pod["metadata"]["uid"], status["round"], restarts

    async def scraped(self, release, *token):
        """Status and page of each operator's metrics."""
        names = [pod["metadata"]["name"] for pod in await self.operators()]
        words = ("python3", "-c", SCRAPE, f"{release}-intake.{self.namespace}.svc", *token)
        said = [await execute(self.namespace, name, *words, container="operator") for name in names]
        return [(int(status), page) for status, _, page in (each.partition("\n") for each in said)]

    async def page(self, release, topic, token):
        """Status of an answer of the page, asked in its own pod."""
        (pod,) = await self.pods("app.kubernetes.io/component=page")
        words = ("python3", "-c", PAGE, f"{release}-page.{self.namespace}.svc", f"/api/topic?topic={topic}", token)
        return int(await execute(self.namespace, pod["metadata"]["name"], *words, container="page"))

    async def refused(self, release, token):
        """Requests of the operators that were refused for want of a right."""
        pages = [page for _, page in await self.scraped(release, token)]
        assert all("torchyard_api_requests_total" in page for page in pages)
        return [line for page in pages for line in page.splitlines() if 'code="403"' in line]


async def test_a_job_trains_on_through_upgrade_uninstall_and_reinstall(api, namespace, helm, release, accounts):
    place = Installation(api, namespace)
    prometheus, stranger, bind = accounts

    # Install.
    name = await release("install")
    assert "Phase:          Succeeded" in await helm("test", name)
    await api.request("POST", place.jobs, body=LONG_JOB)
    await place.trains_on()
    same = await place.identity()
    authority = await place.secret(f"{name}-ca")
    for token, answer in ((prometheus, 403), ("x.y.z", 401)):
        assert await place.page(name, f"jobs|{namespace}", token) == answer
    assert [status for status, _ in await place.scraped(name, prometheus)] == [403]
    await bind(name)

    async def is_read():
        return [status for status, _ in await place.scraped(name, prometheus)] == [200]

    await until(is_read, why=lambda: "an account with the right cannot read the metrics")
    for token, refusal in (((), 401), (("x.y.z",), 401), ((stranger,), 403)):
        assert [status for status, _ in await place.scraped(name, *token)] == [refusal]
    assert await place.refused(name, prometheus) == []

    # A second release for the same namespace is refused, however it is chosen; the first one may still be upgraded.
    known = rf"installation {name} \(of namespace {namespace}\) manages namespace {namespace} already"
    some = r"installation \S+ \(of namespace \S+\) manages namespace \S+ already"  # there may be others by now
    for chosen, said in ((f"watchNamespaces={{default,{namespace}}}", known), ("rbac.aggregate=false", some)):
        with pytest.raises(AssertionError, match=said):
            await helm("install", f"second-{namespace}", str(CHART), "--set", f"crds.install=false,{chosen}")
    assert f"second-{namespace}" not in await helm("list", "--short")

    # Upgrade, to two replicas: a new certificate of the same authority.
    first = {pod["metadata"]["uid"] for pod in await place.operators()}
    await release("upgrade", replicas=2, podAnnotations={"example.com/revision": "2"})
    await place.trains_on()
    assert await place.identity() == same
    assert await place.secret(f"{name}-ca") == authority
    await until(place.one_of_two_leads)
    assert not first & {pod["metadata"]["uid"] for pod in await place.operators()}
    assert "Phase:          Succeeded" in await helm("test", name)
    assert await place.refused(name, prometheus) == []

    # Uninstall: the operator goes, everything of the user stays.
    await helm("uninstall", name, "--wait", "--timeout", f"{PATIENCE:.0f}s")
    await until(place.no_operators)
    assert (await place.get(CRD_PATH))["metadata"]["name"] == crd()["metadata"]["name"]
    assert await place.identity() == same

    # Install again: the agent that has waited is heard, for the authority it trusts was kept.
    await release("install")
    await place.trains_on()
    assert await place.identity() == same
    assert await place.secret(f"{name}-ca") == authority

    # Without an operator a deleted job takes its pods along.
    await helm("uninstall", name, "--wait", "--timeout", f"{PATIENCE:.0f}s")
    await api.request("DELETE", f"{place.jobs}/long")

    async def cleared():
        return await place.pods("torchyard.dev/job=long") == []

    await until(cleared, why=lambda: "the pod of a deleted job is still there")


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
async def test_the_api_server_knows_every_field_of_the_chart(api, shared_namespace, path):
    """Its strict mode names fields that it would drop without a word."""
    for document in list(yaml.safe_load_all(path.read_text()))[1:]:
        if document["kind"] in {"CustomResourceDefinition", "ServiceMonitor", "PrometheusRule"}:
            continue
        if document["kind"] == "Secret":
            document |= {"data": {}, "type": "Opaque"}
        if document["kind"] == "Pod":
            document["spec"]["serviceAccountName"] = "default"
        if "namespace" in document["metadata"]:
            document["metadata"]["namespace"] = shared_namespace
        params = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "torchyard-tests", "force": "true"}
        try:
            await api.request("PATCH", path_of(document), params=params, body=document, content_type=APPLY_PATCH)
        except Rejected as error:
            pytest.fail(f"{document['kind']} {document['metadata']['name']}: {error}")


def path_of(document):
    """Where the API server keeps an object."""
    group, _, version = document["apiVersion"].rpartition("/")
    home = f"/apis/{group}/{version}" if group else f"/api/{version}"
    within = document["metadata"].get("namespace")
    plural = re.sub("ys$", "ies", f"{document['kind'].lower()}s")
    name = document["metadata"]["name"]
    return f"{home}/namespaces/{within}/{plural}/{name}" if within else f"{home}/{plural}/{name}"
