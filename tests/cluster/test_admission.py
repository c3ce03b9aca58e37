"""What the API server refuses by the policies of the chart: attacks of a tenant, a neighbour and a stolen token."""

import contextlib
import copy
import json

import aiohttp
import pytest
import yaml
from tests.support.charts import CHART, helm, needs_helm
from tests.support.cluster.namespaces import make_namespace, shared_namespace
from tests.support.cluster.operators import until
from tests.support.cluster.patient_api import PatientApi, connected

from torchyard.api.resource import read_job
from torchyard.kubernetes.client.api import APPLY_PATCH, JSON, MERGE_PATCH, authorizing
from torchyard.kubernetes.client.errors import Rejected
from torchyard.kubernetes.election import LABEL as LEADER
from torchyard.kubernetes.manifests.companions import network_policy, service
from torchyard.kubernetes.manifests.names import Site
from torchyard.kubernetes.manifests.pod import pod
from torchyard.reconcile.actions import CreatePod

pytestmark = needs_helm

RBAC = "/apis/rbac.authorization.k8s.io/v1"
PATHS = {
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{{}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{}}/rolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}
SITE = Site(operator_url="https://intake:8443", ca_pem="x", agent_image="agent:1", trainer_image="trainer:1")
DRY = {"dryRun": "All"}
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JOB = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob", "spec": {"script": "pass", "suspend": True}}
TRIAL_OF_NOBODY = {"name": "tune-0", "labels": {"torchyard.dev/sweep-uid": "1-2-3"}}


class Cluster:
    """An API server under the policies of a release that manages one namespace, and clients of several users."""

    def __init__(self, api, namespace):
        self.api, self.namespace = api, namespace
        self.operator = f"system:serviceaccount:{namespace}:{namespace}-torchyard"

    @contextlib.asynccontextmanager
    async def as_user(self, name):
        """A client with the rights of this user, over the connections of the tests."""
        ours, credentials = self.api.session, self.api.credentials
        async with aiohttp.ClientSession(
            connector=ours.connector,
            connector_owner=False,
            headers={**ours.headers, "Impersonate-User": name},
            middlewares=(authorizing(credentials),),
            proxy=credentials.proxy,
        ) as session:
            yield PatientApi(session, credentials)

    async def ask(self, user, verb, path, body, *, params=DRY, **options):
        """Return why a request is refused, "" if it is not."""
        async with self.as_user(user) as api:
            try:
                await api.request(verb, path, body=body, params=params, **options)
            except Rejected as error:
                return str(error)
        return ""

    def group(self, plural):
        return f"/apis/torchyard.dev/v1alpha1/namespaces/{self.namespace}/{plural}"

    def pods(self, namespace=None):
        return f"/api/v1/namespaces/{namespace or self.namespace}/pods"

    async def as_operator(self, verb, path, body):
        async with self.as_user(self.operator) as api:
            await api.request(verb, path, body=body, content_type=MERGE_PATCH if verb == "PATCH" else JSON)

    async def submit(self, user, spec, name="job", *, verb="POST"):
        path = f"/apis/torchyard.dev/v1alpha1/namespaces/{self.namespace}/trainingjobs"
        body = {
            "apiVersion": "torchyard.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": {"script": "pass"} | spec,
        }
        if verb == "PATCH":
            return await self.ask(user, verb, f"{path}/{name}", {"spec": spec}, content_type=MERGE_PATCH)
        return await self.ask(user, verb, path, body)

    async def sweep(self, user, spec, **fields):
        path = f"/apis/torchyard.dev/v1alpha1/namespaces/{self.namespace}/trainingsweeps"
        return await self.ask(user, "POST", path, sweep("tune", spec, **fields))

    async def grant(self, user, *rules):
        name = user.replace(":", "-")
        of_all = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
        where = PATHS["Role"].format(self.namespace)
        listed = [{"apiGroups": [group], "resources": [what], "verbs": verbs} for group, what, verbs in rules]
        await self.api.request("POST", where, body={**of_all, "kind": "Role", "rules": listed})
        subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        body = {**of_all, "kind": "RoleBinding", "subjects": [subject], "roleRef": role}
        await self.api.request("POST", PATHS["RoleBinding"].format(self.namespace), body=body)


@pytest.fixture(scope="module")
def policies(installed):
    """The namespace that all tests share, since the API server works for seconds to compile the policies of it."""

    async def make():
        async with connected() as api:
            found = Cluster(api, await make_namespace(api, "privileged"))  # where Pod Security would refuse nothing
            made = await _apply(found)
            await until(lambda: _in_force(found), why=lambda: "the policies do not hold yet")
            return found.namespace, made

    with shared_namespace(make) as namespace:
        yield namespace


@pytest.fixture
async def cluster(api, policies):
    """The API server; what a test leaves in the namespace goes with it."""
    found = Cluster(api, policies)
    yield found
    for path in (*map(found.group, ("trainingjobs", "trainingsweeps")), found.pods()):
        await api.request("DELETE", path, body={"gracePeriodSeconds": 0})


async def _apply(cluster):
    """Apply what the chart renders, and give users their rights; return the paths of the former."""
    namespace = cluster.namespace
    values = {"watchNamespaces": [namespace], "admission": {"secrets": ["public"], "serviceAccounts": ["trainer"]}}
    shown = [word for name in ("admission", "rbac") for word in ("--show-only", f"templates/{name}.yaml")]
    done = helm("template", namespace, CHART, "--namespace", namespace, *shown, values=values)
    assert done.returncode == 0, done.stderr
    made = []
    params = {"fieldManager": "torchyard-tests", "force": "true"}
    for document in filter(None, yaml.safe_load_all(done.stdout)):
        path = f"{PATHS[document['kind']].format(namespace)}/{document['metadata']['name']}"
        await cluster.api.request("PATCH", path, params=params, body=document, content_type=APPLY_PATCH)
        made.append(path)
    edit = [("torchyard.dev", kind, ["create", "update", "patch"]) for kind in ("trainingjobs", "trainingsweeps")]
    await cluster.grant("tenant", *edit)
    await cluster.grant("reader", *edit, ("", "secrets", ["get"]))
    await cluster.grant("editor", *edit, ("", "pods", ["create", "patch"]))
    return made


async def _in_force(cluster):
    """Whether each policy refuses something: the API server takes one up some time after it was made."""
    service = {"metadata": {"name": "x"}, "spec": {"ports": [{"port": 1}]}}
    refused = [
        await cluster.submit("tenant", {"envFrom": [{"secret": "private"}]}),
        await cluster.sweep("tenant", {"envFrom": [{"secret": "private"}]}),
        await cluster.submit(cluster.operator, {}),
        await cluster.ask(cluster.operator, "POST", cluster.pods(), {"metadata": {"name": "x"}, "spec": bare()}),
        await cluster.ask("editor", "POST", cluster.pods(), member(bare())),
        await cluster.ask("tenant", "POST", cluster.group("trainingjobs"), {**JOB, "metadata": TRIAL_OF_NOBODY}),
        await cluster.ask(cluster.operator, "POST", cluster.pods().replace("pods", "services"), service),
    ]
    return all("ValidatingAdmissionPolicy" in each for each in refused)


def sweep(name, spec, **fields):
    return {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingSweep",
        "metadata": {"name": name},
        "spec": {
            "objective": {"metric": "loss", "goal": "minimize"},
            "parameters": [{"path": "nodes", "choice": [1, 2]}],
            "jobTemplate": {"spec": {"script": "pass"} | spec},
            **fields,
        },
    }


def bare():
    return {"containers": [{"name": "x", "image": "x"}]}


def member(spec):
    labels = {"torchyard.dev/job": "job", "torchyard.dev/job-uid": "1-2-3", "torchyard.dev/index": "0"}
    return {"metadata": {"name": "job-0-0", "labels": labels}, "spec": spec}


async def test_a_job_uses_no_secret_and_no_account_that_its_creator_could_not_use(cluster):
    secret = {"envFrom": [{"secret": "private"}]}
    for spec in (
        secret,
        {"volumes": [{"name": "x", "mountPath": "/x", "secret": "private"}]},
        {"imagePullSecrets": ["public", "private"]},
    ):
        refused = await cluster.submit("tenant", spec)
        assert "names Secret private, and tenant may neither create pods nor read Secrets" in refused
        assert await cluster.submit("reader", spec) == await cluster.submit("editor", spec) == ""
    refused = await cluster.submit("tenant", {"serviceAccountName": "admin"})
    assert "spec.serviceAccountName: admin, and tenant may not create pods" in refused
    assert "admin" in await cluster.submit("reader", {"serviceAccountName": "admin"})
    assert await cluster.submit("editor", {"serviceAccountName": "admin"}) == ""
    for spec in ({}, {"envFrom": [{"secret": "public"}, {"configMap": "any"}]}, {"serviceAccountName": "trainer"}):
        assert await cluster.submit("tenant", spec) == ""
    # A job that somebody else may run is not a way around it.
    path = f"/apis/torchyard.dev/v1alpha1/namespaces/{cluster.namespace}/trainingjobs"
    job = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "kept"}}
    await cluster.api.request("POST", path, body={**job, "spec": {"script": "pass", "suspend": True, **secret}})
    assert "names Secret private" in await cluster.submit("tenant", {"suspend": False}, "kept", verb="PATCH")
    labelled = {"metadata": {"labels": {"a": "b"}}}
    assert await cluster.ask("tenant", "PATCH", f"{path}/kept", labelled, content_type=MERGE_PATCH) == ""


async def test_a_sweep_cannot_exceed_the_rights_of_its_creator(cluster):
    secret = {"envFrom": [{"secret": "private"}]}
    assert "names Secret private, and tenant may neither" in await cluster.sweep("tenant", secret)
    refused = await cluster.sweep("tenant", {"serviceAccountName": "admin"})
    assert "spec.jobTemplate.spec.serviceAccountName: admin, and tenant may not create pods" in refused
    assert await cluster.sweep("editor", {"serviceAccountName": "admin"} | secret) == ""
    assert await cluster.sweep("tenant", {}) == ""
    tuned = [{"path": "serviceAccountName", "choice": ["admin", "default"]}]
    for user in ("tenant", "editor"):
        assert "cannot differ between trials" in await cluster.sweep(user, {}, parameters=tuned)
    assert "must be at most 3600s" in await cluster.sweep("editor", {"gracePeriod": "61m"})
    assert "is not allowed" in await cluster.sweep("editor", {"scheduling": {"priorityClass": "system-node-critical"}})


async def test_a_stolen_token_of_the_operator_makes_and_changes_trials_of_sweeps_alone(cluster):
    group = f"/apis/torchyard.dev/v1alpha1/namespaces/{cluster.namespace}"
    there = json.loads(await cluster.api.request("POST", f"{group}/trainingsweeps", body=sweep("tune", {})))
    uid = there["metadata"]["uid"]
    owner = {"apiVersion": there["apiVersion"], "kind": "TrainingSweep", "name": "tune", "uid": uid, "controller": True}

    def trial(name="tune-0", owners=(owner,), labels=None):
        metadata = {"name": name, "labels": labels or {"torchyard.dev/sweep-uid": uid}, "ownerReferences": list(owners)}
        job = {"apiVersion": there["apiVersion"], "kind": "TrainingJob", "metadata": metadata}
        return job | {"spec": {"script": "pass", "suspend": True}}

    async def made(document):
        return await cluster.ask(cluster.operator, "POST", f"{group}/trainingjobs", document)

    async def changed(name, body):
        path = f"{group}/trainingjobs/{name}"
        return await cluster.ask(cluster.operator, "PATCH", path, body, content_type=MERGE_PATCH)

    assert await made(trial()) == ""
    policy = f"ValidatingAdmissionPolicy '{cluster.namespace}-torchyard-trials'"
    for attack in (
        trial(owners=()),
        trial(owners=[owner | {"kind": "TrainingJob"}]),
        trial(owners=[owner | {"uid": "1-2-3"}]),
        trial(owners=[owner, owner | {"uid": "1-2-3", "controller": False}]),
        trial(labels={"torchyard.dev/sweep-uid": "1-2-3"}),
    ):
        assert policy in await made(attack), attack
    # One trial, and one job of a user.
    await cluster.as_operator("POST", f"{group}/trainingjobs", trial())
    users = {"apiVersion": there["apiVersion"], "kind": "TrainingJob", "metadata": {"name": "job"}}
    spec = {"script": "pass", "suspend": True}
    await cluster.api.request("POST", f"{group}/trainingjobs", body=users | {"spec": spec})
    edit = {"metadata": {"annotations": {"torchyard.dev/trial": "{}"}}, "spec": {"suspend": False}}
    assert await changed("tune-0", edit) == ""
    assert policy in await changed("tune-0", {"metadata": {"labels": {"torchyard.dev/sweep-uid": "1-2-3"}}})
    assert policy in await changed("job", {"spec": {"suspend": False}})


async def test_other_accounts_cannot_create_or_change_a_job_that_looks_like_a_trial(cluster):
    forbidden = f"ValidatingAdmissionPolicy '{cluster.namespace}-torchyard-trial-owners'"
    jobs = cluster.group("trainingjobs")
    there = json.loads(await cluster.api.request("POST", cluster.group("trainingsweeps"), body=sweep("tune", {})))
    uid = there["metadata"]["uid"]
    owner = {"apiVersion": there["apiVersion"], "kind": "TrainingSweep", "name": "tune", "uid": uid, "controller": True}
    labels = {"torchyard.dev/sweep": "tune", "torchyard.dev/sweep-uid": uid}
    trial = {"ownerReferences": [owner], "labels": labels, "annotations": {"torchyard.dev/trial": "{}"}}
    await cluster.as_operator("POST", jobs, {**JOB, "metadata": {"name": "tune-0"} | trial})
    await cluster.api.request("POST", jobs, body={**JOB, "metadata": {"name": "plain"}})

    async def changed(name, body):
        return await cluster.ask("editor", "PATCH", f"{jobs}/{name}", body, content_type=MERGE_PATCH)

    for mark in (
        *({"labels": {label: value}} for label, value in labels.items()),
        *({"annotations": {f"torchyard.dev/{name}": "{}"}} for name in ("trial", "trial-signature")),
        {"ownerReferences": [owner]},
        {"ownerReferences": [owner | {"apiVersion": "evil.dev/v1", "controller": False}]},
        trial,
    ):
        assert forbidden in await cluster.ask("editor", "POST", jobs, {**JOB, "metadata": {"name": "x"} | mark})
        assert forbidden in await changed("plain", {"metadata": mark})
    for change in (
        {"metadata": {"annotations": {"torchyard.dev/trial": '{"values":{"10":1e9}}'}}},
        {"metadata": {"annotations": {"torchyard.dev/trial": None}}},
        {"metadata": {"labels": {"torchyard.dev/sweep-uid": None}}},
        {"metadata": {"ownerReferences": []}},
        {"spec": {"nodes": 2}},
        {"spec": {"suspend": False}},
    ):
        assert forbidden in await changed("tune-0", change), change
    for name in ("tune-0", "plain"):
        assert await changed(name, {"metadata": {"labels": {"team": "blue"}, "finalizers": ["team.example/x"]}}) == ""
    assert await changed("plain", {"spec": {"suspend": False}}) == ""


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"scheduling": {"priorityClass": "system-node-critical"}}, "system-node-critical is not allowed"),
        ({"scheduling": {"tolerations": [{"operator": "Exists"}]}}, "node-role.kubernetes.io/control-plane"),
        (
            {"scheduling": {"tolerations": [{"key": "node-role.kubernetes.io/master", "operator": "Exists"}]}},
            "must not be tolerated",
        ),
        ({"gracePeriod": "61m"}, "must be at most 3600s"),
        ({"resources": {"disk": "2Ti"}}, "must be at most 1Ti"),
        ({"resources": {"disk": 2000000000000000}}, "must be at most 1Ti"),
        ({"checkpoint": {"volume": {"ephemeral": "1025Gi"}}}, "must be at most 1Ti"),
    ],
)
async def test_a_job_asks_for_nothing_that_the_site_keeps_for_itself(cluster, spec, why):
    assert why in await cluster.submit("editor", spec)


async def test_parameters_of_more_than_64_kib_are_not_stored(cluster):
    """Each of them is within the bounds of every level that the CRD has."""

    async def submit(params):
        return await cluster.submit("editor", {"script": None, "trainer": {"name": "mine:Workload", "params": params}})

    for fits in (
        {"text": "x" * 16_000},
        {f"p{number}": list(range(100)) for number in range(100)},
        {"deep": {"deeper": [{"deepest": [1] * 1000}] * 30}},
        {"none": None, "empty": {}, "list": []},
    ):
        assert await submit(fits) == ""
    for large in (
        {f"p{number}": "x" * 16_000 for number in range(5)},
        {f"p{number}": [1] * 1024 for number in range(128)},
        {"deep": [[1] * 1024] * 65},
        {"deep": {"deeper": [{"deepest": ["x" * 100]}] * 1000}},
        {"deep": [{"deeper": [[1] * 64] * 8}] * 128},
    ):
        refused = await submit(large)
        assert "spec.trainer.params must be at most 64 KiB as JSON: put large data into a file" in refused, refused


async def test_a_stolen_token_of_the_operator_makes_pods_of_jobs_and_nothing_else(cluster):
    job = {"metadata": {"name": "job", "uid": "1-2-3", "namespace": cluster.namespace}, "spec": {"script": "pass"}}
    good = pod(read_job(job), CreatePod(name="job-0-0", index=0, incarnation=0), SITE)
    assert await cluster.ask(cluster.operator, "POST", cluster.pods(), good) == ""

    def changed(*path, to):
        bad = copy.deepcopy(good)
        place = bad
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to
        return bad

    container = ("spec", "containers", 0, "securityContext")
    token = {"serviceAccountToken": {"path": "token", "audience": "https://kubernetes.default.svc"}}
    volume = {"name": "more", "projected": {"sources": [token]}}
    bare_token = {"name": "more", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    volumes = good["spec"]["volumes"]
    owner = good["metadata"]["ownerReferences"][0]
    attacks = [
        changed("metadata", "ownerReferences", to=[]),
        changed("metadata", "ownerReferences", to=[owner | {"kind": "Job"}]),
        changed("metadata", "ownerReferences", to=[owner | {"apiVersion": "evil.dev/v1"}]),
        changed("metadata", "ownerReferences", to=[owner | {"uid": "4-5-6"}]),
        changed("metadata", "labels", to={}),
        changed("spec", "hostNetwork", to=True),
        changed("spec", "hostPID", to=True),
        changed("spec", "nodeName", to="control-plane"),
        changed("spec", "volumes", to=[*volumes, {"name": "more", "hostPath": {"path": "/"}}]),
        changed("spec", "volumes", to=[*volumes, {"name": "more", "nfs": {"server": "x", "path": "/"}}]),
        changed("spec", "volumes", to=[*volumes, volume]),
        changed("spec", "volumes", to=[*volumes, bare_token]),
        changed("spec", "automountServiceAccountToken", to=True),
        changed("spec", "securityContext", to={}),
        changed("spec", "securityContext", "runAsUser", to=0),
        changed("spec", "securityContext", "seccompProfile", to={"type": "Unconfined"}),
        changed("spec", "securityContext", "sysctls", to=[{"name": "kernel.msgmax", "value": "1"}]),
        changed("spec", "securityContext", "seLinuxOptions", to={"type": "spc_t"}),
        changed("spec", "securityContext", "seLinuxOptions", to={"user": "system_u"}),
        changed("spec", "securityContext", "appArmorProfile", to={"type": "Unconfined"}),
        changed("metadata", "annotations", to={"container.apparmor.security.beta.kubernetes.io/trainer": "unconfined"}),
        changed(*container, to={}),
        changed(*container, "runAsUser", to=0),
        changed(*container, "capabilities", to={"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        changed(*container, "seLinuxOptions", to={"role": "sysadm_r"}),
        changed(*container, "appArmorProfile", to={"type": "Unconfined"}),
        changed(*container[:-1], "livenessProbe", to={"tcpSocket": {"host": "10.0.0.1", "port": 22}}),
        changed(*container[:-1], "lifecycle", to={"preStop": {"httpGet": {"host": "10.0.0.1", "port": 80}}}),
        changed("spec", "initContainers", to=[{"name": "more", "image": "x"}]),
        changed("spec", "priorityClassName", to="system-node-critical"),
        changed("spec", "tolerations", to=[{"operator": "Exists"}]),
        changed("spec", "terminationGracePeriodSeconds", to=3601),
    ]
    for attack in attacks:
        refused = await cluster.ask(cluster.operator, "POST", cluster.pods(), attack)
        assert f"ValidatingAdmissionPolicy '{cluster.namespace}-torchyard-operator'" in refused, json.dumps(attack)
    for allowed in (  # as clusters add them
        changed("spec", "securityContext", "seLinuxOptions", to={"level": "s0:c26,c5"}),
        changed("spec", "securityContext", "appArmorProfile", to={"type": "RuntimeDefault"}),
        changed(*container[:-1], "readinessProbe", to={"httpGet": {"path": "/", "port": 15021}}),
    ):
        assert await cluster.ask(cluster.operator, "POST", cluster.pods(), allowed) == ""


async def test_a_stolen_token_of_the_operator_changes_no_pod_in_its_namespace(cluster):
    """An image that is patched would run with the Secrets of that pod, of the operator's own for one."""
    plain = {"metadata": {"name": "plain", "labels": {"app": "x"}}, "spec": restricted()}
    await cluster.api.request("POST", cluster.pods(), body=plain)

    async def patched(**body):
        path = f"{cluster.pods()}/plain"
        return await cluster.ask(cluster.operator, "PATCH", path, body, content_type=STRATEGIC_PATCH)

    async def is_in_force():
        return "ValidatingAdmissionPolicy" in await patched(metadata={"labels": {"app": "y"}})

    await until(is_in_force)
    assert await patched(metadata={"labels": {LEADER: "true"}}) == ""
    await cluster.as_operator("PATCH", f"{cluster.pods()}/plain", {"metadata": {"labels": {LEADER: "true"}}})
    assert await patched(metadata={"labels": {LEADER: None}}) == ""
    for attack in (
        patched(spec={"containers": [{"name": "x", "image": "evil"}]}),
        patched(spec={"activeDeadlineSeconds": 1}),
        patched(metadata={"labels": {"app": None}}),
        patched(metadata={"labels": {LEADER: None, "more": "x"}}),
        patched(metadata={"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1-2-3"}]}),
    ):
        assert f"ValidatingAdmissionPolicy '{cluster.namespace}-torchyard-leader'" in await attack


async def test_a_stolen_token_of_the_operator_opens_no_other_pods_to_the_network(cluster):
    job = read_job(
        {"metadata": {"name": "job", "uid": "1-2-3", "namespace": cluster.namespace}, "spec": {"script": "pass"}}
    )
    apply = {"content_type": APPLY_PATCH, "params": DRY | {"fieldManager": "torchyard"}}

    async def policy(**changes):
        document = network_policy(job, ({"podSelector": {}},))
        document["metadata"] |= changes.pop("metadata", {})
        document["spec"] |= changes
        where = f"/apis/networking.k8s.io/v1/namespaces/{cluster.namespace}/networkpolicies"
        return await cluster.ask(
            cluster.operator, "PATCH", f"{where}/{document['metadata']['name']}", document, **apply
        )

    async def headless(**changes):
        document = service(job)
        document["spec"] |= changes
        return await cluster.ask(cluster.operator, "POST", f"/api/v1/namespaces/{cluster.namespace}/services", document)

    assert await policy() == await headless() == ""
    (owner,) = service(job)["metadata"]["ownerReferences"]
    attacks = [
        policy(podSelector={}),
        policy(podSelector={"matchLabels": {"app": "database"}}),
        policy(podSelector={"matchLabels": {"torchyard.dev/job-uid": "4-5-6"}}),
        policy(metadata={"ownerReferences": []}),
        policy(metadata={"ownerReferences": [owner | {"kind": "Job"}]}),
        policy(metadata={"name": "another"}),
        headless(selector={"app": "database"}),
        headless(clusterIP=None),
        headless(externalIPs=["192.0.2.1"]),
    ]
    for attack in attacks:
        assert f"ValidatingAdmissionPolicy '{cluster.namespace}-torchyard-network'" in await attack


async def test_other_accounts_cannot_create_a_pod_that_looks_like_a_member(cluster):
    members = f"ValidatingAdmissionPolicy '{cluster.namespace}-torchyard-members'"
    forged = member(bare())
    assert members in await cluster.ask("editor", "POST", cluster.pods(), forged)
    owner = {"apiVersion": "evil.dev/v1", "kind": "TrainingJob", "name": "job", "uid": "1-2-3", "controller": True}
    owned = {"metadata": {"name": "x", "ownerReferences": [owner]}, "spec": bare()}
    assert members in await cluster.ask("editor", "POST", cluster.pods(), owned)
    leader = {"metadata": {"name": "x", "labels": {"torchyard.dev/leader": "true"}}, "spec": bare()}
    assert members in await cluster.ask("editor", "POST", cluster.pods(), leader)
    # The controller of a user's Deployment creates what the user has written in it.
    for controller in ("replicaset-controller", "job-controller"):
        user = f"system:serviceaccount:kube-system:{controller}"
        assert members in await cluster.ask(user, "POST", cluster.pods(), forged)
    plain = {"metadata": {"name": "plain", "labels": {"app": "x"}}, "spec": restricted()}
    assert await cluster.ask("editor", "POST", cluster.pods(), plain) == ""
    await cluster.api.request("POST", cluster.pods(), body=plain)
    for change in (forged["metadata"]["labels"], {"torchyard.dev/leader": "true"}):
        patch = {"metadata": {"labels": change}}
        path = f"{cluster.pods()}/plain"
        assert members in await cluster.ask("editor", "PATCH", path, patch, content_type=MERGE_PATCH)
    other = {"metadata": {"labels": {"team": "blue"}}}
    assert await cluster.ask("editor", "PATCH", f"{cluster.pods()}/plain", other, content_type=MERGE_PATCH) == ""


async def test_other_accounts_change_nothing_that_makes_a_pod_a_member(cluster):
    made = await cluster.api.request("POST", cluster.group("trainingjobs"), body={**JOB, "metadata": {"name": "job"}})
    real = pod(read_job(json.loads(made)), CreatePod(name="job-0-0", index=0, incarnation=0), SITE, "signature")
    real["spec"] |= {"nodeSelector": {"no": "node"}}
    await cluster.as_operator("POST", cluster.pods(), real)

    async def patched(user, **metadata):
        path = f"{cluster.pods()}/job-0-0"
        return await cluster.ask(user, "PATCH", path, {"metadata": metadata}, content_type=MERGE_PATCH)

    for edit in (
        {"ownerReferences": []},
        {"labels": {"torchyard.dev/job-uid": None}},
        {"labels": {"torchyard.dev/job-uid": "4-5-6"}},
        {"annotations": {"torchyard.dev/created-by": None}},
        {"annotations": {"torchyard.dev/configuration": "other"}},
    ):
        assert f"ValidatingAdmissionPolicy '{cluster.namespace}-torchyard-members'" in await patched("editor", **edit)
    assert await patched("editor", annotations={"team.example/note": "x"}, labels={"team": "blue"}) == ""
    collector = "system:serviceaccount:kube-system:generic-garbage-collector"
    assert await patched(collector, ownerReferences=[]) == "", "as it orphans the pods of a job"


def restricted():
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod_context = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    only = {"name": "x", "image": "x", "securityContext": context}
    return {"containers": [only], "securityContext": pod_context, "nodeSelector": {"no": "node"}}
