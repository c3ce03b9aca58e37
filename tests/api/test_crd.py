"""The CRD: what the API server demands of a structural schema, and what we promise on top."""

import re
from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml

from torchyard.api import values
from torchyard.api.crd import MAX_CRD_BYTES, NEVER_VISITED, crd, crd_yaml
from torchyard.api.resource import resolved
from torchyard.api.schema import structural
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_workload import Trainer
from torchyard.api.validation.parse import RULES
from torchyard.api.values import MAX_DEPTH

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "charts/torchyard/files/trainingjobs.yaml"
VERSION = crd()["spec"]["versions"][0]
OBJECT = VERSION["schema"]["openAPIV3Schema"]


def nodes(schema, path=""):
    """Every schema node with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}".lstrip("."))
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


NODES = list(nodes(OBJECT))


def test_it_is_plain_yaml_that_helm_upgrades_and_never_deletes():
    text = COMMITTED.read_text()
    assert yaml.safe_load(text) == crd()
    assert "{{" not in text
    assert crd()["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_it_stays_small():
    assert len(crd_yaml().encode()) < MAX_CRD_BYTES


@pytest.mark.parametrize(("path", "node"), NODES, ids=[path or "object" for path, _ in NODES])
def test_every_node_is_structural(path, node):
    assert not {"$ref", "anyOf", "oneOf", "allOf", "not", "title", "definitions", "$defs"} & set(node)
    anything = node.get("x-kubernetes-preserve-unknown-fields") is True
    assert node.get("nullable") is (True if anything else None)
    assert "type" in node or anything or node.get("x-kubernetes-int-or-string") is True
    assert not ("type" in node and "x-kubernetes-int-or-string" in node)
    # The API server reads them as flags beside minimum and maximum: give ge and le.
    assert not {"exclusiveMinimum", "exclusiveMaximum"} & set(node)
    assert not ("properties" in node and "additionalProperties" in node)
    if anything:
        assert path.startswith("spec.trainer.params[]")
        assert {"maxLength", "maxItems", "maxProperties"} <= set(node)
    if node.get("type") == "object" and path != "metadata":
        assert {"properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"} & set(node)
    assert set(node.get("required", ())) <= set(node.get("properties", {}))


def test_every_field_has_a_description():
    fields = [(path, node) for path, node in NODES if path not in {"", "metadata"} and not path.endswith("[]")]
    assert [path for path, node in fields if len(node.get("description", "")) < 4] == []


def test_what_rules_read_is_bounded():
    """The API server refuses rules whose worst case it cannot bound."""
    for path, node in NODES:
        if not path.startswith("spec"):
            continue
        if node.get("type") == "string":
            assert "maxLength" in node or "enum" in node, path
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
    deepest = [node for path, node in NODES if path == f"spec.trainer.params{'[]' * (MAX_DEPTH + 1)}"]
    assert {(node["maxItems"], node["maxProperties"]) for node in deepest} == {(0, 0)}, "no value nests without end"


def convert(document, into):
    return msgspec.convert(document, into, dec_hook=values.decode)


def test_defaults_satisfy_their_own_schema_and_equal_the_models():
    def filled(schema):
        return {
            name: (filled(child) if "properties" in child else child["default"])
            for name, child in schema["properties"].items()
            if "default" in child
        }

    spec = OBJECT["properties"]["spec"]
    for path, node in NODES:
        if path == "status":
            assert node["default"] == NEVER_VISITED, "no rule judges it"
            continue
        if "default" in node and "x-kubernetes-int-or-string" not in node:
            jsonschema.validate(node["default"], node)
        if "default" in node and "properties" in node:
            assert node["default"] == filled(node), f"{path}: rules would judge an incomplete default"
        if path.endswith("[]"):
            assert "default" not in node, path
        if path.startswith("status"):
            assert "default" not in node, path
    from_models = resolved(convert({}, TrainingJobSpec))
    from_server = resolved(convert(filled(spec), TrainingJobSpec))
    assert from_server == from_models
    assert convert(filled(spec["properties"]["trainer"]) | {"name": "cvrp"}, Trainer) == Trainer(name="cvrp")
    assert set(filled(spec)) >= {"nodes", "parallelism", "checkpoint", "restart", "health", "suspend", "gracePeriod"}


def test_lists_are_merged_by_their_keys():
    keys = {path: node["x-kubernetes-list-map-keys"] for path, node in NODES if "x-kubernetes-list-map-keys" in node}
    named = ("spec.env", "spec.inputs", "spec.resources.claims", "spec.volumes")
    assert keys == {path: ["name"] for path in named}  # the status has one owner, as a whole
    for path, names in keys.items():
        item = dict(NODES)[f"{path}[]"]
        assert set(names) <= set(item["required"])
    assert all("x-kubernetes-list-type" in node for _, node in NODES if node.get("type") == "array")


def test_the_status_has_one_owner_as_a_whole():
    assert OBJECT["properties"]["status"]["x-kubernetes-map-type"] == "atomic"
    assert not [path for path, node in NODES if path.startswith("spec") and "x-kubernetes-map-type" in node]


def test_every_rule_that_cel_can_express_is_there_with_its_fix():
    messages = {
        (path, validation["message"]) for path, node in NODES for validation in node.get("x-kubernetes-validations", ())
    }
    for rule in RULES:
        path = ".".join(part for part in ("spec", rule.scope, rule.field if rule.on_field else "") if part)
        message = f"{rule.what.replace('{value}', 'the value')}: {rule.fix}"
        assert ((path, message) in messages) == (rule.cel is not None)


def test_rules_point_at_fields_that_exist():
    paths = dict(NODES)
    for path, node in NODES:
        for validation in node.get("x-kubernetes-validations", ()):
            assert "\n" not in validation["rule"] + validation["message"]
            if "fieldPath" in validation:
                assert f"{path}{validation['fieldPath']}".removeprefix(".") in paths


def test_patterns_mean_the_same_to_go():
    """RE2 knows no look-around, no back-references and no Python classes."""
    for _, node in NODES:
        assert not re.search(r"\(\?[=!<P]|\\[1-9wdsZ]", node.get("pattern", ""))


def test_kubectl_shows_the_columns_people_look_for():
    columns = VERSION["additionalPrinterColumns"]
    assert [c["name"].upper() for c in columns if not c.get("priority")] == (
        ["STATE", "PROGRESS", "STEP", "LOSS", "REWARD", "RATE", "GPUS", "GOODPUT", "RESTARTS", "ETA", "AGE"]
    )
    assert [c["name"].upper() for c in columns if c.get("priority") == 1] == [
        "ROUND",
        "CKPT",
        "REASON",
        "NODES",
        "GANG",
        "POSITION",
        "RESULT",
        "AVOIDS",
    ]
    known = {f".{path}" for path, _ in NODES} | {".metadata.creationTimestamp"}
    assert {c["jsonPath"] for c in columns} <= known


def test_names_and_subresources():
    spec = crd()["spec"]
    assert spec["names"]["shortNames"] == ["tj"]
    assert spec["names"]["categories"] == ["all", "ml"]
    assert VERSION["subresources"]["status"] == {}
    assert VERSION["subresources"]["scale"]["specReplicasPath"] == ".spec.nodes"


def test_a_form_without_structural_counterpart_is_refused():
    with pytest.raises(ValueError, match="no structural schema"):
        structural({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]})


def test_nothing_but_the_name_of_the_metadata_is_restricted():
    """The API server refuses a CRD that says anything else about metadata, a description included."""
    assert set(OBJECT["properties"]["metadata"]) == {"type", "properties"}
    assert set(OBJECT["properties"]["metadata"]["properties"]) == {"name"}
