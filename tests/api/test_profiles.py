"""TrainingProfiles: what they fill in, what they limit, and what is wrong with them, in one sentence each."""

import pytest
import yaml
from tests.support.profiles import LIMITED, spec_of

from torchyard.api.profiles.effective import FIELDS, as_pinned, enforced, filled_in, with_defaults
from torchyard.api.profiles.limits import LIMITS, faults, policy_rules, within
from torchyard.api.profiles.resource import read_profile
from torchyard.api.profiles.validate import validate_profile
from torchyard.api.resource import read_job
from torchyard.api.schema import spec_schema
from torchyard.api.spec_profile import Defaults, Limits


def job(**said):
    return read_job({"metadata": {"name": "x", "namespace": "team"}, "spec": spec_of(said)})


def profile(**spec):
    read = read_profile({"metadata": {"name": "research", "uid": "p", "generation": 3}, "spec": spec})
    assert read.problem == ""
    return read.spec


FULL = {
    "image": "registry.example.com/team/train:1",
    "imagePullSecrets": ["registry"],
    "serviceAccountName": "trainer",
    "resources": {"cpu": 4, "memory": "16Gi", "disk": "50Gi", "shm": "4Gi"},
    "scheduling": {
        "queue": "research",
        "priorityClass": "low",
        "workloadPriorityClass": "batch",
        "nodeSelector": {"pool": "research", "zone": "a"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    },
    "activeDeadline": "24h",
    "ttlAfterFinished": "48h",
}


def test_a_profile_fills_in_what_a_job_leaves_open_and_nothing_else():
    defaults = profile(defaults=FULL).defaults
    empty = with_defaults(job().spec, defaults)
    assert set(FIELDS) - set(filled_in(job().spec, defaults)) == {"scheduling.workloadPriorityClass"}
    of_kueue = job(scheduling={"gang": "kueue", "queue": "small"}).spec
    assert filled_in(of_kueue, defaults)["scheduling.workloadPriorityClass"] == "batch"
    assert (empty.image, empty.resources.memory, empty.scheduling.queue) == (FULL["image"], "16Gi", "research")
    own = job(
        image="mine", resources={"memory": "1Gi"}, scheduling={"queue": "small", "nodeSelector": {"zone": "b"}}
    ).spec
    effective = with_defaults(own, defaults)
    assert (effective.image, effective.resources.memory, effective.resources.cpu) == ("mine", "1Gi", 4)
    assert effective.scheduling.queue == "small"
    assert effective.scheduling.node_selector == {"pool": "research", "zone": "b"}
    assert with_defaults(effective, defaults) == effective


def test_every_field_that_a_profile_fills_in_has_no_default_of_its_own():
    """The API server stores defaults: a profile could not tell them from what a user wrote."""
    for field in FIELDS:
        node = spec_schema()
        for name in field.split("."):
            node = node["properties"][name]
        assert "default" not in node or node["default"] in ([], {})


def test_labels_that_the_limits_impose_win_over_the_defaults():
    read = profile(defaults=FULL, limits={"nodeLabels": {"pool": "only"}})
    assert enforced(read.defaults, read.limits).scheduling.node_selector == {"pool": "only", "zone": "a"}


@pytest.mark.parametrize("name", LIMITED)
def test_a_limit_is_kept_or_named(name):
    limits, kept, exceeding = LIMITED[name]
    read = profile(limits=limits)
    assert [*faults(job(**kept).spec, read, "research", "team")] == []
    for said in exceeding:
        (sentence,) = map(str, faults(job(**said).spec, read, "research", "team"))
        assert sentence.startswith("spec.")
        assert "profile research" in sentence


def test_every_limit_has_a_case_and_stands_in_the_policies():
    cased = {path for limits, _, _ in LIMITED.values() for path in _paths(limits)}
    assert cased == {each.limit for each in LIMITS}
    assert len([*policy_rules()]) == len(LIMITS) + 1
    for name in Limits.__struct_encode_fields__:
        assert any(each.limit.split(".")[0] == name for each in LIMITS), f"no limit judges limits.{name}"


def _paths(limits, prefix=""):
    for name, value in limits.items():
        if name in {"resources", "code"}:
            yield from _paths(value, f"{name}.")
        else:
            yield f"{prefix}{name}"


def test_a_limit_that_requires_a_value_is_kept_by_a_default():
    limits = {"resources": {"memory": "8Gi"}, "queues": ["other"], "activeDeadline": "1h"}
    read = profile(limits=limits, defaults=FULL)
    assert [*faults(job().spec, read, "research", "team")] == []


def test_a_profile_of_other_namespaces_cannot_be_used():
    read = profile(namespaces=["vision"])
    (sentence,) = map(str, faults(job().spec, read, "research", "team"))
    assert "is for other namespaces: vision" in sentence
    assert [*faults(job().spec, read, "research", "vision")] == []


def test_the_prefix_of_an_image_ends_where_a_name_ends():
    assert within("ghcr.io/team/a:1", ["ghcr.io/team/"])
    assert within("ghcr.io/team@sha256:0", ["ghcr.io/team"])
    assert not within("ghcr.io/team-b/a", ["ghcr.io/team"])


EXISTS = {"key": "a", "operator": "Exists", "value": "b"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"limits": {"nodes": "four"}}, "limits.nodes"),
        ({"limits": {"nodse": 4}}, ""),
        ({"lmits": {}}, "lmits"),
        ([], "spec"),
        ({"defaults": {"scheduling": {"tolerations": [EXISTS]}}}, "spec.defaults.scheduling.tolerations[0].value"),
    ],
)
def test_a_malformed_profile_is_read_and_says_what_is_wrong(spec, words):
    read = read_profile({"metadata": {"name": "x"}, "spec": spec})
    assert words in read.problem
    assert (read.problem == "") == (words == ""), read.problem


def test_a_file_of_a_profile_is_checked_with_lines(tmp_path):
    file = tmp_path / "profile.yaml"
    document = {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingProfile",
        "metadata": {"name": "research"},
        "spec": {"limits": {"nodse": 4}},
    }
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    (problem,) = validate_profile(file).problems
    assert (problem.line, problem.path) == (7, "spec.limits.nodse")
    assert "nodes" in problem.fix
    document["spec"] = {"defaults": FULL, "limits": {"nodes": 4}}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    assert validate_profile(file).profile.spec.limits.nodes == 4


def test_the_pinned_profile_of_a_status_survives_a_newer_version():
    read = read_job(
        {
            "metadata": {"name": "x"},
            "spec": {"script": "1", "profile": "research"},
            "status": {
                "profile": {"name": "research", "defaults": {"image": "a", "new": 1, "resources": {"new": 2}}, "new": 3}
            },
        }
    )
    assert as_pinned(read).spec.image == "a"
    assert as_pinned(job()).spec.image is None
    assert read.status.profile.defaults == Defaults(image="a")
