"""The table of accepted and rejected objects, judged by the Python side."""

import re
from pathlib import Path

import pytest
import yaml
from tests.support.large_objects import too_large

from torchyard.api.resource import read_job
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.validation.changes import FIXED, FREE, forbidden_changes
from torchyard.api.validation.parse import RULES
from torchyard.api.validation.schema_check import params_schema
from torchyard.api.validation.validate import check_update, validate_bytes
from torchyard.api.values import BUILT_IN

OBJECTS = Path(__file__).parent / "objects"
ACCEPTED, REJECTED, UPDATES = (
    yaml.safe_load((OBJECTS / f"{name}.yaml").read_text()) for name in ("accepted", "rejected", "updates")
)
REJECTED += too_large()


def document(spec, metadata=None):
    return {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": metadata or {"name": "x"},
        "spec": spec,
    }


def validate(case):
    text = yaml.safe_dump(document(case["spec"], case.get("metadata")))
    return validate_bytes(text.encode(), "job.yaml")


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["name"])
def test_accepted(case):
    result = validate(case)
    assert [str(problem) for problem in result.problems] == []
    assert len(result.jobs) == 1


@pytest.mark.parametrize("case", REJECTED, ids=lambda case: case["name"])
def test_rejected_at_the_right_field_with_the_right_words(case):
    result = validate(case)
    assert result.jobs == ()
    said = [str(problem) for problem in result.problems if problem.path == case["at"]]
    assert any(case["says"] in line for line in said), [str(problem) for problem in result.problems]


@pytest.mark.parametrize("case", UPDATES, ids=lambda case: case["name"])
def test_updates(case):
    old, new = (read_job(document(case[side])) for side in ("old", "new"))
    refused = check_update(old, new)
    assert {problem.path for problem in refused} == set(case["refused"])
    assert all("be changed" in problem.what and problem.fix for problem in refused)


def test_every_rule_has_an_object_that_breaks_it():
    seen = {(case["at"], case["says"]) for case in REJECTED}
    plain = {re.sub(r"\[[0-9]+\]", "[]", at) for at, _ in seen}
    for rule in RULES:
        path = ".".join(part for part in ("spec", rule.scope, rule.field) if part)
        assert path in plain, path


def test_every_field_of_the_spec_is_fixed_or_free():
    """A new field must say whether it may change, or it would be changed without effect."""
    known = {fixed.field for fixed in FIXED} | set(FREE)
    for name in TrainingJobSpec.__struct_encode_fields__:
        assert any(field == name or field.startswith(f"{name}.") for field in known), name


def test_fixed_and_free_fields_exist():
    same = TrainingJobSpec()
    assert forbidden_changes(same, same) == ()


def test_every_implemented_trainer_publishes_its_parameters():
    for trainer in BUILT_IN:
        assert params_schema(trainer)["properties"]
