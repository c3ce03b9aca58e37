"""Values: every one is described, bounded, documented and used; a misspelt one is refused before anything happens."""

import json
import subprocess

import jsonschema
import pytest
import yaml
from tests.support.charts import CHART, HELM, needs_helm, rendered
from tests.support.waiting import DEADLINE

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def leaves(schema, path=()):
    """Every value with its path; objects whose keys are the user's own are values themselves."""
    for name, child in schema["properties"].items():
        if "properties" in child:
            yield from leaves(child, (*path, name))
        else:
            yield ".".join((*path, name)), child


LEAVES = dict(leaves(SCHEMA))
DEFAULTED = [path for path in LEAVES if path != "global"]  # which Helm gives to every chart that is a part of another


def default(path):
    node = VALUES
    for name in path.split("."):
        node = node[name]
    return node


def test_the_defaults_satisfy_the_schema():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)


@pytest.mark.parametrize("path", DEFAULTED)
def test_every_value_has_a_description_and_a_default(path):
    assert len(LEAVES[path].get("description", "")) > 8
    default(path)


def test_every_object_refuses_what_it_does_not_know():
    def objects(schema):
        if "properties" in schema:
            yield schema
            for child in schema["properties"].values():
                yield from objects(child)
        if "items" in schema:
            yield from objects(schema["items"])

    assert all(schema["additionalProperties"] is False for schema in objects(SCHEMA))


@needs_helm
def test_a_package_has_a_readme_with_every_value_its_default_and_meaning(tmp_path):
    subprocess.run(
        [HELM, "package", CHART, "--destination", tmp_path], check=True, capture_output=True, timeout=DEADLINE
    )
    (package,) = tmp_path.iterdir()
    shown = subprocess.run(
        [HELM, "show", "readme", package], check=True, capture_output=True, text=True, timeout=DEADLINE
    )
    lines = shown.stdout.splitlines()
    rows = [f"| `{path}` | `{json.dumps(default(path))}` | {LEAVES[path]['description']} |" for path in DEFAULTED]
    assert [row for row in rows if row not in lines] == []


def test_every_value_is_used():
    templates = "".join(path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file())
    last = {path.rpartition(".")[2] for path in DEFAULTED}
    assert {name for name in last if f".{name}" not in templates} == set()


@needs_helm
@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"replica": 2}, "replica"),
        ({"image": {"tag": "latest"}}, "tag"),
        ({"image": {"digest": "sha256:short"}}, "digest"),
        ({"replicas": 0}, "replicas"),
        ({"watchNamespaces": ["Not A Name"]}, "watchNamespaces"),
        ({"metrics": {"serviceMonitor": {"interval": "often"}}}, "interval"),
        ({"networkPolicy": {"enable": True}}, "networkPolicy"),
        ({"fullnameOverride": "My_Operator"}, "fullnameOverride"),
        ({"nameOverride": "my.operator"}, "nameOverride"),
        ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "podLabels"),
        ({"podLabels": {"torchyard.dev/leader": "true"}}, "podLabels"),
    ],
    ids=lambda case: json.dumps(case) if isinstance(case, dict) else "",
)
def test_a_mistake_is_refused_by_name(values, word):
    with pytest.raises(ValueError, match=word):
        rendered(values)


@needs_helm
def test_a_name_that_yaml_would_read_as_something_else_stays_a_name():
    def named(names):
        release, full, chart, account, secret, where = names
        values = {
            "fullnameOverride": full, "nameOverride": chart, "watchNamespaces": [where], "replicas": 2,
            "serviceAccount": {"name": account}, "tls": {"existingSecret": secret}, "priorityClassName": account,
            "networkPolicy": {"enabled": True},
            "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
        }  # fmt: skip
        return rendered(values, release)

    ordinary = ("release-1", "full-1", "chart-1", "account-1", "secret-1", "where-1")
    odd = ("123", "yes", "on", "null", "true", "off")
    text = json.dumps(named(ordinary))
    for old, new in zip(ordinary, odd, strict=True):
        text = text.replace(old, new)
    assert named(odd) == json.loads(text)


@needs_helm
def test_no_image_is_latest():
    for document in rendered({"replicas": 2}):
        pod = document["spec"].get("template", document)["spec"] if document["kind"] in {"Deployment", "Pod"} else {}
        for container in pod.get("containers", []):
            _, _, tag = container["image"].rpartition("/")[2].partition(":")
            assert tag
            assert tag != "latest"
            assert not [argument for argument in container.get("args", []) if argument.endswith(":latest")]
