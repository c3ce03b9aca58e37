"""The JSON Schema for editors: it accepts what the API server accepts, and marks what a person mistypes."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from torchyard.api.validation.yaml_tree import read
from torchyard.sweeps.schema import file_schema

ROOT = Path(__file__).parents[2]
SCHEMA = file_schema()
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
ACCEPTED = yaml.safe_load((Path(__file__).parent / "objects/accepted.yaml").read_text())
HEADER = {"apiVersion": "torchyard.dev/v1alpha1", "metadata": {"name": "a"}}


def mistakes(document):
    return [(".".join(map(str, error.absolute_path)), error.message) for error in VALIDATOR.iter_errors(document)]


def test_it_is_a_schema_without_extensions_and_every_reference_leads_somewhere():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    text = json.dumps(SCHEMA)
    assert "x-kubernetes" not in text
    references = {part.partition('"')[0] for part in text.split('"$ref": "#/definitions/')[1:]}
    assert references <= SCHEMA["definitions"].keys()


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["name"])
def test_what_the_api_server_accepts_has_no_mistake(case):
    assert mistakes({**HEADER, "kind": "TrainingJob", "spec": case["spec"]}) == []


EXAMPLES = [path for path in sorted((ROOT / "examples").rglob("*.yaml")) if "torchyard.dev/" in path.read_text()]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_have_no_mistake_and_name_the_schema(path):
    first, *_ = path.read_text().splitlines()
    named = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / named).resolve() == ROOT / "docs/reference/schema.json"
    documents, _ = read(path.read_text())
    assert [mistakes(document.plain) for document in documents] == [[] for _ in documents]


@pytest.mark.parametrize(
    ("kind", "spec", "place"),
    [
        ("TrainingJob", {"nodez": 2}, "spec"),
        ("TrainingJob", {"nodes": "two"}, "spec.nodes"),
        ("TrainingJob", {"trainer": {"name": "lm", "params": {"maxLenght": 10}}}, "spec.trainer.params"),
        ("TrainingJob", {"trainer": {"name": "lm", "params": {"method": "rlhf"}}}, "spec.trainer.params.method"),
        ("TrainingSweep", {"maxTrial": 3}, "spec"),
    ],
)
def test_a_mistake_is_marked_at_its_place(kind, spec, place):
    assert place in dict(mistakes({**HEADER, "kind": kind, "spec": spec}))
