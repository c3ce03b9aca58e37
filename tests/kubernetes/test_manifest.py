"""The pod of a gang's member: one golden file a case, the job above, the pod below.

`TORCHYARD_WRITE_GOLDEN=1 pytest tests/kubernetes/test_manifest.py` writes the pods again; read the difference, then
commit.
"""

import json
import os
import re
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import models
from tests.support.kubernetes.pod_json import ended, seen

from torchyard.api.resource import read_job
from torchyard.api.status import Images
from torchyard.kubernetes.manifests import environment as files
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.environment import verbatim
from torchyard.kubernetes.manifests.names import Site
from torchyard.kubernetes.manifests.pod import images, pod, template
from torchyard.reconcile.actions import CreatePod
from torchyard_agent.workers.environment import unpack

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.yaml"))
SITE = Site(
    operator_url="https://torchyard-intake.torchyard-system.svc:8443",
    ca_pem="-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    agent_image="ghcr.io/torchyard/operator:0.1.0",
    trainer_image="ghcr.io/torchyard/trainer:0.1.0",
)
UNREACHABLE = "node.kubernetes.io/unreachable"
SECOND = CreatePod(name="cvrp-0-1", index=1, incarnation=0)


class Plain(yaml.SafeDumper):
    """No aliases, and text of many lines as a block."""

    def ignore_aliases(self, data):
        return True


Plain.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def built(site=SITE, action=SECOND, **spec):
    document = {"metadata": {"name": "cvrp", "uid": "u-1"}, "spec": spec or {"trainer": {"name": "cvrp"}}}
    return pod(read_job(document), action, site)


def container(document):
    (only,) = document["spec"]["containers"]
    return only


def env(document, image=None):
    """What the agent's workers find, where the image or `envFrom` set some already."""
    found = dict(image or {})
    found |= {variable["name"]: expanded(variable.get("value", "")) for variable in container(document)["env"]}
    unpack(found)
    return found


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden(path):
    documents = list(yaml.safe_load_all(path.read_text()))
    document = pod(read_job(documents[0]), SECOND, SITE)
    if os.environ.get("TORCHYARD_WRITE_GOLDEN"):
        job = path.read_text().partition("---\n")[0]
        path.write_text(
            f"{job}---\n{yaml.dump(document, Dumper=Plain, sort_keys=False, width=200, allow_unicode=True)}"
        )
    else:
        assert document == documents[1]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_field_is_one_that_kubernetes_knows(path):
    """An API server in strict mode refuses others; in its default mode it drops them without a word."""
    assert list(strange(pod(read_job(next(yaml.safe_load_all(path.read_text()))), SECOND, SITE), "V1Pod")) == []


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_pod_meets_the_restricted_pod_security_standard(path):
    spec = pod(read_job(next(yaml.safe_load_all(path.read_text()))), SECOND, SITE)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    for one in [*spec.get("initContainers", ()), *spec["containers"]]:
        context = one["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert "privileged" not in context
    allowed = {"configMap", "emptyDir", "image", "persistentVolumeClaim", "projected", "secret"}
    assert {kind for volume in spec["volumes"] for kind in volume if kind != "name"} <= allowed
    mounted = {volume["name"] for volume in spec["volumes"]}
    used = [mount for one in spec["containers"] for mount in one["volumeMounts"]]
    assert {mount["name"] for mount in used} == mounted
    assert len(used) == len({mount["mountPath"] for mount in used})


def test_the_pod_belongs_to_the_job_and_is_labelled_as_a_member():
    metadata = built()["metadata"]
    (owner,) = metadata["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("u-1", True, False)
    assert metadata["labels"] == {
        "app.kubernetes.io/managed-by": "torchyard",
        "torchyard.dev/job": "cvrp",
        "torchyard.dev/job-uid": "u-1",
        "torchyard.dev/index": "1",
        "torchyard.dev/incarnation": "0",
    }


def test_the_pod_has_no_rights_and_its_token_is_for_the_intake_alone():
    spec = built()["spec"]
    assert spec["automountServiceAccountToken"] is False
    sources = next(volume for volume in spec["volumes"] if "projected" in volume)["projected"]["sources"]
    assert sources[0] == {
        "serviceAccountToken": {"audience": "torchyard.dev", "expirationSeconds": 3600, "path": "token"}
    }
    assert built()["metadata"]["annotations"]["torchyard.dev/intake-ca"] == SITE.ca_pem


def test_a_job_without_gpus_sees_none_even_where_the_image_asks_for_all():
    assert env(built())["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "NVIDIA_VISIBLE_DEVICES" not in env(built(trainer={"name": "cvrp"}, gpusPerNode=1))


def test_the_users_variables_win_over_defaults_and_lose_to_the_contract():
    spec = {"script": "1", "env": [{"name": "HOME", "value": "/data"}, {"name": "OMP_NUM_THREADS", "value": "7"}]}
    found = env(built(**spec, resources={"cpu": 4}), {"HOME": "/root", "TORCHYARD_JOB": "other"})
    assert (found["HOME"], found["OMP_NUM_THREADS"], found["TORCHYARD_JOB"]) == ("/data", "7", "cvrp")
    listed = [variable["name"] for variable in container(built(**spec))["env"]]
    assert len(listed) == len(set(listed))


def test_defaults_give_way_to_an_image_and_to_env_from_but_caches_do_not():
    image = {"OMP_NUM_THREADS": "3", "TORCH_FR_BUFFER_SIZE": "9", "TRITON_CACHE_DIR": "/opt/read-only", "HOME": "/root"}
    found = env(built(script="1", resources={"cpu": 4}), image)
    assert (found["OMP_NUM_THREADS"], found["TORCH_FR_BUFFER_SIZE"]) == ("3", "9")
    assert (found["TRITON_CACHE_DIR"], found["HOME"]) == ("/tmp/cache/triton", "/tmp")
    assert found["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    moved = built(script="1", env=[{"name": "TRITON_CACHE_DIR", "value": "/data/$(HOME)"}])
    assert env(moved, image)["TRITON_CACHE_DIR"] == "/data/$(HOME)"


@pytest.mark.parametrize(
    ("resources", "procs", "threads"),
    [({"cpu": 96}, 8, "12"), ({"cpu": "3500m"}, 2, "1"), ({"cpu": "500m"}, "auto", "1"), ({}, 8, None)],
)
def test_processes_share_the_cores_of_the_pod_not_of_the_node(resources, procs, threads):
    assert env(built(script="1", procsPerNode=procs, resources=resources)).get("OMP_NUM_THREADS") == threads


def test_the_cluster_may_give_out_the_user_itself():
    spec = built(msgspec.structs.replace(SITE, run_as=None), checkpoint={"volume": {"claim": "c"}}, script="1")["spec"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_labels_and_annotations_of_a_job_are_on_its_pods_and_replace_none_of_ours():
    added = {"podLabels": {"team": "vision", names.JOB_UID: "x"}, "podAnnotations": {"a.example/b": "c"}}
    metadata, plain = built(script="1", **added)["metadata"], built(script="1")["metadata"]
    assert metadata["labels"] == plain["labels"] | {"team": "vision"}
    assert metadata["annotations"] == plain["annotations"] | {
        "a.example/b": "c",
        names.CONFIGURATION: metadata["annotations"][names.CONFIGURATION],
    }
    assert plain["annotations"]["kubectl.kubernetes.io/default-container"] == "trainer"


@pytest.mark.parametrize(
    ("claim", "resume_from", "expected"),
    [
        ("runs", None, "start-over"),
        ("runs", "other", "start-over"),
        ("runs", "cvrp/best", "go-on"),
        (None, "cvrp", None),
    ],
)
def test_a_folder_that_outlives_its_job_is_taken_over_only_on_request(claim, resume_from, expected):
    checkpoint = {"volume": {"claim": claim} if claim else None, "resumeFrom": resume_from}
    document = built(script="1", checkpoint={name: value for name, value in checkpoint.items() if value})
    assert env(document).get("TORCHYARD_FORMER_JOB") == expected


@pytest.mark.parametrize(
    ("own", "seconds"),
    [
        ([], 30),
        ([{"operator": "Exists"}], 30),
        ([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoSchedule"}], 30),
        ([{"operator": "Exists"}, {"key": UNREACHABLE, "operator": "Exists", "tolerationSeconds": 600}], None),
        ([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}], 600),
    ],
    ids=["none", "every taint", "placement only", "every taint before it", "600 s"],
)
def test_a_pod_leaves_a_lost_node_after_the_seconds_of_a_toleration_that_names_its_taint(own, seconds):
    tolerations = built(command=["true"], scheduling={"tolerations": own})["spec"]["tolerations"]
    matching = [
        each
        for each in tolerations
        if each.get("key", UNREACHABLE) == UNREACHABLE and each.get("effect", "NoExecute") == "NoExecute"
    ]
    assert matching[0].get("tolerationSeconds") == seconds, "Kubernetes uses the first one that matches"


def test_a_gang_keeps_the_images_it_was_created_with():
    kept = Images(trainer="trainer:old", agent="agent:old")
    spec = built(action=msgspec.structs.replace(SECOND, images=kept), script="1")["spec"]
    assert (spec["containers"][0]["image"], spec["initContainers"][0]["image"]) == ("trainer:old", "agent:old")


@pytest.mark.parametrize("script", [{"script": "1"}, {"command": ["true"]}], ids=["script", "command"])
@pytest.mark.parametrize("launcher", [{}, {"launcher": {"kind": "none"}}], ids=["agent", "none"])
def test_the_images_that_a_gang_gets_are_those_that_its_pods_have(script, launcher):
    document = built(**script, **launcher)
    document["metadata"] |= {"name": "cvrp-0-1", "uid": "u-7"}
    document["status"] = ended(0)
    job = read_job({"metadata": {"name": "cvrp", "uid": "u-1"}, "spec": script | launcher})
    assert seen(document).pod.images == images(job, SITE)


def test_what_pods_must_have_in_common_is_read_back_from_them():
    document = built(script="1", nodes=2, envFrom=[{"secret": "token"}])
    document["metadata"] |= {"name": "cvrp-0-1", "uid": "u-7"}
    document["status"] = ended(0)
    document["status"]["containerStatuses"][0]["imageID"] = "docker.io/me/train@sha256:" + "a" * 64
    pod = seen(document).pod
    assert pod.configuration == document["metadata"]["annotations"][names.CONFIGURATION]
    assert pod.images == Images(trainer=SITE.trainer_image, agent=SITE.agent_image)
    assert pod.image_digest == "docker.io/me/train@sha256:" + "a" * 64
    for unknown in ("", "sha256:" + "b" * 64, "docker.io/library/import-2026-11-25@sha256:" + "c" * 64):
        document["status"]["containerStatuses"][0]["imageID"] = unknown
        assert seen(document).pod.image_digest == "", "digests of archives say nothing"


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_pod_that_mounts_the_agent_has_no_init_container_and_the_same_files(path):
    job = read_job(next(yaml.safe_load_all(path.read_text())))
    copied, mounted = (pod(job, SECOND, msgspec.structs.replace(SITE, agent_volume=each)) for each in (False, True))
    if job.spec.launcher.kind == "none":
        assert mounted == copied, "without an agent, only a script is installed"
        return
    assert not list(strange(mounted, "V1Pod"))
    assert "initContainers" not in mounted["spec"]
    (volume,) = (each for each in mounted["spec"]["volumes"] if "image" in each and each["name"] == names.AGENT_VOLUME)
    assert volume["image"]["reference"] == SITE.agent_image
    mounts = {each["name"]: each for each in container(mounted)["volumeMounts"]}
    assert f"{mounts[names.AGENT_VOLUME]['mountPath']}{names.AGENT_ZIPAPP}" == names.AGENT_INSTALLED
    (installer,) = copied["spec"]["initContainers"]
    before, after = (
        {each["name"]: each.get("value") for each in one["env"]} for one in (installer, container(mounted))
    )
    assert before.items() <= after.items()
    assert after["TORCHYARD_FILES_TO"] == names.CONFIG
    mounted["metadata"] |= {"name": f"{job.metadata.name}-0-1", "uid": "u-7"}
    assert seen(mounted | {"status": {"phase": "Pending"}}).pod.images.agent == SITE.agent_image


def test_a_node_that_could_not_start_a_container_is_avoided_where_others_have_room():
    avoiding = msgspec.structs.replace(SECOND, avoid=("node-a", "node-b"))
    document = built(action=avoiding, gpusPerNode=1, gpu={"minMemory": "40Gi"})
    spec = document["spec"]
    found = spec["affinity"]["nodeAffinity"]
    assert found["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (preferred,) = found["preferredDuringSchedulingIgnoredDuringExecution"]
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("node-a", "node-b")]
    assert (preferred["weight"], preferred["preference"]["matchFields"]) == (100, fields)
    assert not list(strange(document, "V1Pod"))


def test_the_longest_script_reaches_the_pod_in_parts_that_linux_accepts(monkeypatch):
    monkeypatch.setattr(files, "PART_BYTES", 4099)
    script = "# ü\n" * (15 * 1024 // 4)
    (installer,) = built(script=script)["spec"]["initContainers"]
    found = {variable["name"]: variable["value"] for variable in installer["env"]}
    counts = json.loads(found["TORCHYARD_FILES"])
    parts = [expanded(found[f"TORCHYARD_FILE_1_{part}"]) for part in range(counts["script.py"])]
    assert "".join(parts) == script
    assert max(len(part.encode()) for part in parts) <= files.PART_BYTES


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300))
def test_parts_put_together_are_the_file(text):
    small = files.PART_BYTES
    try:
        files.PART_BYTES = 7
        parts = list(files._parts(text))
    finally:
        files.PART_BYTES = small
    assert "".join(parts) == text
    assert all(0 < len(part.encode()) <= 7 for part in parts)


@given(st.text(st.sampled_from("$()AB{} `\\"), max_size=40))
def test_nothing_a_user_writes_is_expanded(text):
    assert expanded(verbatim(text)) == text


def expanded(text):
    """What the kubelet makes of a value; `<...>` for what it would look up (third_party/forked/golang/expansion)."""

    def one(match):
        return "$" if match[0] == "$$" else f"<{match[0]}>" if match[0].endswith(")") else match[0]

    return re.sub(r"\$\$|\$\([^)]*\)|\$", one, text)


def strange(value, kind):
    """Fields and types that the Kubernetes API does not have, by the client's generated models."""
    if kind.lower().startswith(("list[", "dict[")):
        inner = kind[5:-1].rpartition(", ")[2]
        for item in value.values() if isinstance(value, dict) else value:
            yield from strange(item, inner)
    elif hasattr(models, kind):
        model = getattr(models, kind)
        names_of = {wire: name for name, wire in model.attribute_map.items()}
        for field, below in value.items():
            if field not in names_of:
                yield f"{kind}.{field}"
            else:
                yield from strange(below, model.openapi_types[names_of[field]])
        model(**{names_of[field]: below for field, below in value.items() if field in names_of})  # raises on a gap
    elif not isinstance(value, {"str": str, "int": int, "bool": bool}[kind]):
        yield f"{kind}: {value!r}"


@pytest.mark.parametrize(
    ("site", "resources", "limit"),
    [
        ("", {}, None),
        ("16Gi", {}, "16Gi"),
        ("16Gi", {"memory": "32Gi"}, "32Gi"),
        ("16Gi", {"memory": "32Gi", "shm": "1Gi"}, "1Gi"),
        ("16Gi", {"memory": "0", "shm": "0Gi"}, "16Gi"),  # to a kubelet, zero is no limit
        ("16Gi", {"memory": "32Gi", "shm": 0}, "32Gi"),
    ],
)
def test_memory_volumes_of_a_pod_are_bounded(site, resources, limit):
    document = built(msgspec.structs.replace(SITE, shm=site), trainer={"name": "cvrp"}, resources=resources)
    volumes = {each["name"]: each.get("emptyDir") for each in document["spec"]["volumes"]}
    assert volumes["torchyard-shm"] == {"medium": "Memory"} | ({"sizeLimit": limit} if limit else {})
    assert volumes["torchyard-run"] == {"medium": "Memory", "sizeLimit": "256Mi"}


def test_the_strict_check_sees_what_is_strange():
    document = built()
    document["spec"]["containers"][0]["volumeMount"] = []
    document["spec"]["enableServiceLinks"] = "no"
    assert sorted(strange(document["spec"]["containers"][0], "V1Container")) == ["V1Container.volumeMount"]
    with pytest.raises(ValueError, match="enable_service_links"):
        list(strange(document, "V1Pod"))
    del document["spec"]["containers"][0]["name"]
    with pytest.raises(ValueError, match="name"):
        list(strange(document, "V1Pod"))


@pytest.mark.parametrize(
    ("site", "spec", "request_", "limit"),
    [
        ("", {}, None, None),
        ("", {"resources": {"disk": "50Gi"}}, "50Gi", "50Gi"),
        ("100Gi", {}, "1Gi", "100Gi"),
        ("100Gi", {"resources": {"disk": "50Gi"}}, "50Gi", "50Gi"),
        ("100Gi", {"resources": {"disk": "0"}}, "1Gi", "100Gi"),
        ("100Gi", {"checkpoint": {"volume": {"ephemeral": "20Gi"}}}, str(21 << 30), str(120 << 30)),
        ("", {"resources": {"disk": "50Gi"}, "checkpoint": {"volume": {"ephemeral": "20Gi"}}}, *[str(70 << 30)] * 2),
        ("100Gi", {"checkpoint": {"volume": {"claim": "models"}}}, "1Gi", "100Gi"),
    ],
)
def test_a_pod_fills_no_more_of_its_nodes_disk_than_its_job_or_the_site_says(site, spec, request_, limit):
    document = built(msgspec.structs.replace(SITE, disk=site), trainer={"name": "cvrp"}, **spec)
    for each in (*document["spec"]["initContainers"], container(document)):
        asked = each["resources"]
        assert asked.get("requests", {}).get("ephemeral-storage") == request_
        assert asked.get("limits", {}).get("ephemeral-storage") == limit


def test_a_queue_is_asked_for_disk_only_if_the_job_asks_for_some():
    site = msgspec.structs.replace(SITE, disk="100Gi")
    for disk, expected in (
        (None, {"cpu": "1"}),
        ("0", {"cpu": "1"}),
        ("5Gi", {"cpu": "1", "ephemeral-storage": "5Gi"}),
    ):
        resources = {"cpu": "1", **({"disk": disk} if disk else {})}
        spec = {"trainer": {"name": "cvrp"}, "resources": resources}
        job = read_job({"metadata": {"name": "cvrp", "uid": "u-1"}, "spec": spec})
        (only,) = template(job, site)["spec"]["containers"]
        assert only["resources"] == {"requests": expected, "limits": expected}


def test_a_claim_that_a_pod_also_writes_to_is_read_only_at_the_mount_of_its_input_alone():
    inputs = [{"name": "a", "from": "claim:data/x"}, {"name": "b", "from": "s3://bucket"}]
    for cache, volume in (("data", {"claimName": "data"}), ("other", {"claimName": "data", "readOnly": True})):
        document = built(script="1", inputs=inputs, inputCache={"claim": cache})
        volumes = {each["name"]: each for each in document["spec"]["volumes"]}
        assert volumes["torchyard-inputs-0"]["persistentVolumeClaim"] == volume
        (mount,) = (each for each in container(document)["volumeMounts"] if each["name"] == "torchyard-inputs-0")
        assert (mount["readOnly"], mount["mountPath"], mount["subPath"]) == (True, "/torchyard/inputs/a", "x")
