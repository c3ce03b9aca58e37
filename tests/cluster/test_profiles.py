"""TrainingProfiles on a cluster: the policies judge as the operator does, and a gang gets what its profile sets."""

import contextlib
import json

import pytest
import yaml
from tests.support.charts import CHART, helm, needs_helm
from tests.support.cluster.jobs import SLEEPS, Jobs
from tests.support.cluster.namespaces import make_namespace, shared_namespace
from tests.support.cluster.operators import until
from tests.support.cluster.patient_api import connected
from tests.support.profiles import LIMITED, spec_of

from torchyard.api.profiles.limits import faults
from torchyard.api.profiles.resource import PATH, read_profile
from torchyard.api.resource import read_job
from torchyard.client.plans.cluster_plan import cluster_plan
from torchyard.client.remote import cluster_view
from torchyard.client.remote.session import Remote
from torchyard.kubernetes.client.api import APPLY_PATCH, MERGE_PATCH
from torchyard.kubernetes.client.errors import NotFound, Rejected

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}
API = {"apiVersion": "torchyard.dev/v1alpha1"}
DRY = {"dryRun": "All"}


def names(namespace):
    """Of the profiles of these tests: objects of the cluster, which no other test may meet."""
    return {case: f"{namespace}-{number}" for number, case in enumerate(LIMITED)}


@contextlib.asynccontextmanager
async def profile(api, name, **spec):
    """A profile that goes afterwards."""
    await api.request("POST", PATH, body={**API, "kind": "TrainingProfile", "metadata": {"name": name}, "spec": spec})
    try:
        yield name
    finally:
        with contextlib.suppress(NotFound):
            await api.request("DELETE", f"{PATH}/{name}", body={})


@pytest.fixture(scope="module")
def policies(installed):
    """A namespace under the policies of profiles; the API server works for seconds to compile them."""

    async def make():
        async with connected() as api:
            namespace = await make_namespace(api)
            shown = ("--show-only", "templates/admission-profiles.yaml")
            values = {"watchNamespaces": [namespace], "admission": {"requireProfile": ["elsewhere"]}}
            done = helm("template", namespace, CHART, "--namespace", namespace, *shown, values=values)
            assert done.returncode == 0, done.stderr
            made = []
            params = {"fieldManager": "torchyard-tests", "force": "true"}
            for document in filter(None, yaml.safe_load_all(done.stdout)):
                path = f"{PATHS[document['kind']]}/{document['metadata']['name']}"
                await api.request("PATCH", path, params=params, body=document, content_type=APPLY_PATCH)
                made.append(path)
            for case, name in names(namespace).items():
                body = {**API, "kind": "TrainingProfile", "metadata": {"name": name}}
                spec = {"namespaces": [namespace], "limits": LIMITED[case][0]}
                await api.request("POST", PATH, body={**body, "spec": spec})
                made.append(f"{PATH}/{name}")
            return namespace, made

    with shared_namespace(make) as namespace:
        yield namespace


async def refusal(api, namespace, spec, *, plural="trainingjobs", verb="POST", name="job", params=DRY):
    """Return why the API server refuses a job, "" if it does not."""
    path = f"/apis/torchyard.dev/v1alpha1/namespaces/{namespace}/{plural}"
    kind = "TrainingJob" if plural == "trainingjobs" else "TrainingSweep"
    body = {**API, "kind": kind, "metadata": {"name": name}, "spec": spec}
    try:
        if verb == "PATCH":
            patch = {"spec": spec}
            await api.request("PATCH", f"{path}/{name}", body=patch, params=params, content_type=MERGE_PATCH)
        else:
            await api.request("POST", path, body=body, params=params)
    except Rejected as error:
        return str(error)
    return ""


def sweep(spec):
    return {
        "objective": {"metric": "loss", "goal": "minimize"},
        "parameters": [{"path": "restart.maxRestarts", "choice": [1, 2]}],
        "jobTemplate": {"spec": spec},
    }


@needs_helm
async def test_the_policies_judge_every_limit_as_the_operator_does(api, policies):
    known = names(policies)

    async def in_force():
        case = next(iter(LIMITED))
        return "profile" in await refusal(api, policies, {**spec_of(LIMITED[case][2][0]), "profile": known[case]})

    await until(in_force, why=lambda: "the policies do not hold yet")
    for case, (limits, kept, exceeding) in LIMITED.items():
        read = read_profile({"metadata": {"name": known[case]}, "spec": {"limits": limits}}).spec
        allowed = {**spec_of(kept), "profile": known[case]}
        assert await refusal(api, policies, allowed) == "", case
        assert await refusal(api, policies, sweep(allowed), plural="trainingsweeps") == "", case
        for said in exceeding:
            spec = {**spec_of(said), "profile": known[case]}
            job = read_job({"metadata": {"name": "job", "namespace": policies}, "spec": spec})
            (sentence,) = map(str, faults(job.spec, read, known[case], policies))
            assert sentence in await refusal(api, policies, spec), case
            of_sweep = await refusal(api, policies, sweep(spec), plural="trainingsweeps")
            assert sentence.replace("spec.", "spec.jobTemplate.spec.", 1) in of_sweep, case


@needs_helm
async def test_a_namespace_can_require_a_profile_and_keep_to_its_own(api, policies):
    plain = {"command": ["true"]}
    assert await refusal(api, policies, plain) == ""
    labels = {"metadata": {"labels": {"torchyard.dev/profile": "required"}}}
    await api.request("PATCH", f"/api/v1/namespaces/{policies}", body=labels, content_type=MERGE_PATCH)

    async def required():
        return "is required in namespace" in await refusal(api, policies, plain)

    await until(required, why=lambda: "the label does not hold yet")
    assert "is required in namespace" in await refusal(api, policies, sweep(plain), plural="trainingsweeps")
    async with profile(api, f"{policies}-other", namespaces=["elsewhere"]) as other:

        async def judged():
            return "is for other namespaces: elsewhere" in await refusal(api, policies, {**plain, "profile": other})

        await until(judged, why=lambda: "the policies do not know the profile yet")
    labels["metadata"]["labels"]["torchyard.dev/profile"] = None
    await api.request("PATCH", f"/api/v1/namespaces/{policies}", body=labels, content_type=MERGE_PATCH)


async def test_a_gang_gets_what_its_profile_sets_and_keeps_it(api, namespace, operator):
    jobs = Jobs(api, namespace)
    name = f"{namespace}-research"
    await jobs.submit("one", command=SLEEPS, profile=name, nodes=2)
    status = await jobs.until("one", lambda status: status.get("reason") == "ProfileNotFound")
    assert f"there is no profile {name}" in status["message"]
    assert (status["state"], await jobs.pods("one")) == ("Pending", {})
    taint = {"key": "example.com/research", "operator": "Exists"}
    defaults = {"resources": {"memory": "128Mi"}, "scheduling": {"tolerations": [taint]}, "activeDeadline": "2h"}
    async with profile(api, name, limits={"nodes": 2}, defaults=defaults):
        status = await jobs.until("one", lambda status: status.get("state") == "Running")
        assert status["profile"]["defaults"] == defaults
        for pod in (await jobs.pods("one")).values():
            assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] == "128Mi"
            assert taint["key"] in {each.get("key") for each in pod["spec"]["tolerations"]}
        edited = {"spec": {"limits": {"nodes": 1}, "defaults": {"resources": {"memory": "256Mi"}}}}
        await api.request("PATCH", f"{PATH}/{name}", body=edited, content_type=MERGE_PATCH)
        await jobs.submit("two", command=SLEEPS, profile=name, nodes=2)
        status = await jobs.until("two", lambda status: status.get("reason") == "OutsideProfile")
        assert f"spec.nodes: profile {name} allows at most 1" in status["message"]
        plan = await planned(api, namespace, {"command": SLEEPS, "profile": name, "nodes": 2})
        assert plan.profile.sets["resources.memory"] == "256Mi"
        assert "allows at most 1" in plan.profile.problem
        assert not plan.possible
        gang = {*await jobs.pods("one")}
        status = await jobs.status("one")
        assert (status["round"], status["profile"]["defaults"]["resources"]["memory"]) == (1, "128Mi")
        assert {*await jobs.pods("one")} == gang
        # Suspended, it takes the profile as it is when it continues.
        await jobs.edit("one", suspend=True)
        await jobs.until("one", lambda status: status.get("state") == "Suspended")
        await jobs.edit("one", suspend=False, nodes=1)
        await jobs.until("one", lambda status: status.get("state") == "Running" and status["round"] == 2)
        (pod,) = (each for each in (await jobs.pods("one")).values() if "deletionTimestamp" not in each["metadata"])
        assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] == "256Mi"
    stored = json.loads(await api.request("GET", f"{jobs.path}/one"))["spec"]
    assert "memory" not in stored.get("resources", {}), "the spec is the user's"


async def planned(api, namespace, spec):
    """Return what `torchyard plan -n NAMESPACE` finds out."""
    document = {**API, "kind": "TrainingJob", "metadata": {"name": "planned"}, "spec": spec}
    job = read_job(document)
    view = await cluster_view.read(Remote(api, namespace, "test", ""), job, document)
    return cluster_plan(job, view, 0.0)
