"""The API server judges by the CRD as `torchyard validate` does: the tables of tests/api, put to a real one."""

import asyncio
import contextlib
import json
import re
from pathlib import Path

import pytest
import yaml
from tests.support.generated_objects import cel_rules, differs_by_design, generated, generated_sweeps, is_present
from tests.support.large_objects import largest, too_large

from torchyard.api.crd import crd
from torchyard.api.resource import read_job, resolved
from torchyard.api.validation.parse import RULES
from torchyard.api.validation.validate import validate_bytes
from torchyard.kubernetes.client.api import MERGE_PATCH
from torchyard.kubernetes.client.errors import Conflict, Rejected
from torchyard.kubernetes.manifests.names import Site
from torchyard.kubernetes.manifests.pod import pod
from torchyard.reconcile.actions import CreatePod
from torchyard.sweeps.crd import sweep_crd
from torchyard.sweeps.rules import SET_BY_SWEEP
from torchyard.sweeps.validate import validate_sweep_bytes

pytestmark = pytest.mark.cluster

TESTS = Path(__file__).parents[1]
ACCEPTED, REJECTED, UPDATES = (
    yaml.safe_load((TESTS / f"api/objects/{name}.yaml").read_text()) for name in ("accepted", "rejected", "updates")
)
ACCEPTED += [{"name": name, "spec": spec} for name, spec in largest().items()]
EXAMPLES = [
    document
    for file in sorted((TESTS.parent / "examples").rglob("*.yaml"))
    for document in yaml.safe_load_all(file.read_bytes())
]
ACCEPTED += [
    {"name": each["metadata"]["name"], "spec": each["spec"]} for each in EXAMPLES if each["kind"] == "TrainingJob"
]
REJECTED += too_large()
BATCHES, BATCH = 10, 1000
SWEEP_BATCHES = 1
GOLDEN = sorted((TESTS / "kubernetes/golden").glob("*.yaml"))
SENTENCES = [f"{rule.what}: {rule.fix}" for rule in RULES]
UNKNOWN_TO_CEL = {rule.fix for rule in RULES if rule.cel is None}
STRICT = {"fieldValidation": "Strict"}
DRY = {**STRICT, "dryRun": "All"}


def job(spec, name="table", **more):
    return {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": spec,
        **more,
    }


@pytest.fixture
def jobs(shared_namespace):
    return f"/apis/torchyard.dev/v1alpha1/namespaces/{shared_namespace}/trainingjobs"


@pytest.fixture
async def post(api, jobs):
    """Creates a job and gives it back as the server keeps it; what is stored goes with the test."""
    stored = []

    async def create(spec, params=DRY, **more):
        document = job(spec, **more)
        kept = json.loads(await api.request("POST", jobs, params=params, body=document))
        if "dryRun" not in params:
            stored.append(kept["metadata"]["name"])
        return kept

    yield create
    for name in stored:
        await api.request("DELETE", f"{jobs}/{name}")


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["name"])
async def test_accepted_and_read_back_as_the_same_spec(post, case):
    kept = await post(case["spec"], **({"metadata": case["metadata"]} if "metadata" in case else {}))
    assert read_job(kept).spec == read_job(job(case["spec"])).spec


@pytest.mark.parametrize("case", REJECTED, ids=lambda case: case["name"])
async def test_rejected_at_the_same_field_with_our_words(post, case):
    more = {"metadata": case["metadata"]} if "metadata" in case else {}
    if not case.get("server", True):
        await post(case["spec"], **more)
        return
    with pytest.raises(Rejected) as refused:
        await post(case["spec"], **more)
    error = refused.value
    where = [cause.field for cause in error.details.causes if cause.field and cause.field[0] != "<"]
    assert any(case["at"] == field or case["at"].startswith(f"{field}.") for field in where) or (
        error.code == 400 and f'unknown field "{case["at"]}' in error.message
    ), error.message
    judged_by_rules = "some validation rules were not checked" not in error.message
    if judged_by_rules and any(case["says"] in sentence for sentence in SENTENCES):
        assert case["says"] in error.message


async def judge(api, path, documents, validate):
    """Put each object to both judges; return the problems of ours, and the error of the API server or what it kept."""
    in_flight = asyncio.Semaphore(8)

    async def judged(document: dict) -> Rejected | dict:
        async with in_flight:
            try:
                return json.loads(await api.request("POST", path, params=DRY, body=document))
            except Rejected as error:
                return error

    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(judged(document)) for document in documents]
        problems = []
        for document in documents:
            problems.append(validate(json.dumps(document, ensure_ascii=False).encode(), "job.json").problems)
            await asyncio.sleep(0)
    return [
        (document, found, answer.result()) for document, found, answer in zip(documents, problems, answers, strict=True)
    ]


def compare(judged, is_unknown_to_cel):
    for document, found, answer in judged:
        if not found:
            assert not isinstance(answer, Rejected), f"only the API server rejects {document}: {answer}"
        elif not isinstance(answer, Rejected) and not differs_by_design(document):
            assert all(map(is_unknown_to_cel, found)), f"only validate rejects {document}: {found}"
    accepted = sum(not found for _, found, _ in judged)
    assert accepted > BATCH / 10, "a generator that makes no valid object compares nothing"


def assert_both_ways(rules, judged):
    """Check that each CEL rule rejected an object, and accepted one that has its field."""
    rejected, accepted = set(), set()
    for document, _, answer in judged:
        if isinstance(answer, Rejected):
            rejected |= {(re.sub(r"\[\d+\]", "[]", cause.field), cause.message) for cause in answer.details.causes}
        accepted |= {
            (path, said)
            for path, said in rules
            if not (isinstance(answer, Rejected) and (said in answer.message or "not checked" in answer.message))
            and is_present(path, document if isinstance(answer, Rejected) else answer)
        }
    never = [(path, said) for path, said in rules if not any(at == path and said in why for at, why in rejected)]
    assert never == [], f"no object breaks {never}"
    # Some fields must not be given at all.
    kept = {(path, said) for path, said in rules if not said.startswith(SET_BY_SWEEP)}
    assert kept <= accepted, f"no object keeps {kept - accepted}"


@pytest.mark.parametrize("seed", range(1, BATCHES + 1))
async def test_both_validations_agree_on_generated_objects(api, jobs, seed):
    """CEL and Python are two sources of the rules: in each thousand objects every rule is broken, and kept."""
    judged = await judge(api, jobs, list(generated(BATCH, seed)), validate_bytes)
    assert_both_ways(list(cel_rules(crd())), judged)
    compare(judged, lambda found: found.fix in UNKNOWN_TO_CEL or found.path.startswith("spec.trainer.params"))


@pytest.mark.parametrize("seed", range(1, SWEEP_BATCHES + 1))
async def test_both_validations_agree_on_generated_sweeps(api, jobs, seed):
    """The same for sweeps; docs/validation.md says what the CRD cannot know of them."""
    path = jobs.replace("trainingjobs", "trainingsweeps")
    judged = await judge(api, path, list(generated_sweeps(BATCH, seed)), validate_sweep_bytes)
    of_jobs = {said for _, said in cel_rules(crd())}
    assert_both_ways([rule for rule in cel_rules(sweep_crd()) if rule[1] not in of_jobs], judged)
    beyond = (
        "spec.objective.metric",
        "spec.algorithm.name",
        "spec.firstTrials",
        "spec.jobTemplate.spec.trainer.params",
    )

    def is_unknown_to_cel(found):
        if found.path.startswith("spec.parameters"):
            return not re.search("is not below max|logarithm|does not fit into the range", found.what)
        return found.path.startswith(beyond) or found.fix in UNKNOWN_TO_CEL

    compare(judged, is_unknown_to_cel)


@pytest.mark.parametrize("case", UPDATES, ids=lambda case: case["name"])
async def test_updates(api, jobs, post, case):
    await post(case["old"], params=STRICT)
    message = ""
    while True:
        stored = json.loads(await api.request("GET", f"{jobs}/table"))
        try:
            await api.request("PUT", f"{jobs}/table", params=DRY, body={**stored, "spec": case["new"]})
        except Conflict:  # somebody wrote to it meanwhile
            continue
        except Rejected as error:
            message = error.message
        break
    known = [] if not case.get("server", True) else [path for path in case["refused"] if path != "spec.trainer.params"]
    named = [
        name for words in re.findall(r"changed( [\w. ]+): it can(?:not)? be changed", message) for name in words.split()
    ]
    assert sorted(named) == sorted(known)


async def test_defaults_are_those_of_the_models(post):
    kept = await post({"trainer": {"name": "cvrp"}})
    models = resolved(read_job(job({"trainer": {"name": "cvrp"}})).spec)

    def present(value):
        if not isinstance(value, dict):
            return value
        return {name: below for name, item in value.items() if (below := present(item)) not in (None, [], {})}

    assert present(kept["spec"]) == present(models)
    assert kept["spec"]["restart"] == {
        "policy": "OnFailure",
        "noProgressLimit": 3,
        "backoff": {"initial": "1s", "max": "5m"},
    }


async def test_a_status_that_a_user_fills_in_is_dropped(api, jobs, post):
    lie = {"state": "Succeeded", "restarts": {"total": -5, "counted": 0, "noProgress": 0}}
    stored = await post({"script": "1", "suspend": True}, params=STRICT, status=lie)
    assert stored["status"] == {"observedGeneration": -1}  # the CRD's default: not yet visited
    patch = {"status": lie, "spec": {"suspend": True}}
    kept = json.loads(await api.request("PATCH", f"{jobs}/table", body=patch, content_type=MERGE_PATCH))
    assert kept.get("status", {}).get("state") != "Succeeded"


async def test_the_status_has_a_resource_of_its_own_that_leaves_the_spec_alone(api, jobs, post):
    stored = await post({"script": "1", "suspend": True}, params=STRICT)
    patch = {"status": {"message": "hello"}, "spec": {"script": "2"}}
    path = f"{jobs}/table/status"
    kept = json.loads(await api.request("PATCH", path, params=DRY, body=patch, content_type=MERGE_PATCH))
    assert (kept["status"]["message"], kept["spec"]["script"]) == ("hello", "1")
    assert kept["metadata"]["generation"] == stored["metadata"]["generation"]


async def test_an_edit_cannot_pass_for_a_status_write(api, jobs, post):
    """Status writes are known by their `lastUpdateTime`, and spared the rules of what may change."""
    await post({"script": "1", "suspend": True}, params=STRICT)
    written = {"status": {"state": "Suspended", "lastUpdateTime": "2026-11-21T06:30:00Z"}}
    await api.request("PATCH", f"{jobs}/table/status", body=written, content_type=MERGE_PATCH)
    for forged in ({"lastUpdateTime": "2026-11-21T06:30:01Z"}, {"lastUpdateTime": None}, None):
        patch = {"status": forged, "spec": {"script": "2"}}
        with pytest.raises(Rejected, match=r"changed spec\.script: it cannot be changed once the job exists"):
            await api.request("PATCH", f"{jobs}/table", params=DRY, body=patch, content_type=MERGE_PATCH)


@pytest.mark.parametrize("suspended", [False, True])
async def test_scaling_a_running_job_is_refused_with_what_to_do_instead(api, jobs, post, suspended):
    await post({"script": "1", "nodes": 2, "suspend": suspended}, params=STRICT)
    scale = json.loads(await api.request("GET", f"{jobs}/table/scale"))
    assert scale["spec"]["replicas"] == 2
    asked = {"params": DRY, "body": {"spec": {"replicas": 3}}, "content_type": MERGE_PATCH}
    if suspended:
        assert json.loads(await api.request("PATCH", f"{jobs}/table/scale", **asked))["spec"]["replicas"] == 3
        return
    with pytest.raises(Rejected) as refused:
        await api.request("PATCH", f"{jobs}/table/scale", **asked)
    assert "it can be changed only while the job is suspended: set spec.suspend to true first" in refused.value.message


async def test_kubectl_explain_has_words_for_every_field(api):
    schema = json.loads(await api.request("GET", "/openapi/v3/apis/torchyard.dev/v1alpha1"))
    published = schema["components"]["schemas"]["dev.torchyard.v1alpha1.TrainingJob"]["properties"]
    undescribed = []

    def walk(path, node):
        for name, child in node.get("properties", {}).items():
            if not child.get("description"):
                undescribed.append(f"{path}.{name}")
            walk(f"{path}.{name}", child)
        if "items" in node:
            walk(f"{path}[]", node["items"])

    for section in ("spec", "status"):
        assert published[section]["properties"]
        walk(section, published[section])
    assert undescribed == []


async def test_kubectl_get_shows_our_columns(api, jobs, post):
    await post({"script": "1", "suspend": True}, params=STRICT)
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    table = json.loads(await api.request("GET", jobs, accept=accept))
    shown = [column["name"].upper() for column in table["columnDefinitions"] if column["priority"] == 0]
    assert shown[:4] == ["NAME", "STATE", "PROGRESS", "STEP"]
    assert table["rows"][0]["cells"][0] == "table"


async def test_the_server_finds_nothing_wrong_with_the_definition(api):
    name = crd()["metadata"]["name"]
    found = json.loads(await api.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"))
    conditions = {condition["type"]: condition["status"] for condition in found["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"
    assert found["spec"]["versions"] == crd()["spec"]["versions"]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
async def test_a_restricted_namespace_takes_every_pod_we_build(api, shared_namespace, path):
    namespace = shared_namespace
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    for name in ("default", "trainer"):
        account["metadata"]["name"] = name
        with contextlib.suppress(Conflict):  # the cluster makes the first one itself
            await api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", body=account)
    site = Site(operator_url="https://intake:8443", ca_pem="PEM", agent_image="agent:1", trainer_image="trainer:1")
    document = pod(
        read_job(next(yaml.safe_load_all(path.read_text()))),
        CreatePod(name="table-0-0", index=0, incarnation=0),
        site,
    )
    document["metadata"]["namespace"] = namespace
    document["spec"].pop("priorityClassName", None)  # one of the cluster, which this test does not make
    kept = json.loads(await api.request("POST", f"/api/v1/namespaces/{namespace}/pods", params=DRY, body=document))
    asked = {one["name"] for one in document["spec"]["containers"][0]["env"]}
    assert asked == {one["name"] for one in kept["spec"]["containers"][0]["env"]}
