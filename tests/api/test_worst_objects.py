"""What the worst accepted object of each field costs the operator: bounded work, and little memory that stays."""

import copy
import json
import re
import time
import tracemalloc

import pytest
from tests.support.effort import calls_of
from tests.support.large_objects import EMOJI, PATTERNS, largest, too_large

from torchyard.api.names import TRIAL
from torchyard.api.resource import TrainingJob
from torchyard.api.schema import spec_schema
from torchyard.api.validation.parse import InvalidJob, parse_job
from torchyard.api.validation.rules_pods import MAX_LABEL_KEY, SIZE
from torchyard.api.validation.schema_check import params_faults, params_schema
from torchyard.api.validation.validate import validate_bytes
from torchyard.api.values import MAX_BYTES, Params

LARGEST = largest()
KEPT_BYTES = 64 * 1024
OWN_BYTES = 12 * 1024  # of the smallest job, and of reading JSON
CALLS = 300_000
"""Calls and returns, of Python and of C: the same in every run. 130,000 take 6 ms on a fast core, so 20 ms at most."""
TIMES_REFERENCE = 50.0
"""What a call of C does inside is not counted, but linear in 64 KiB it is a fraction of this: 0.9 to 2 ms each."""


def document(spec):
    metadata = {"name": "x", "namespace": "team", "uid": "u", "resourceVersion": "1", "generation": 1}
    return {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": spec}


def seconds_of(work):
    """Seconds of CPU, the least of three."""
    taken = []
    for _ in range(3):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


def reference():
    """A fixed amount of work, by which this machine is measured."""
    return sum(hash((number, str(number))) & 1 for number in range(8_000))


@pytest.mark.parametrize("spec", LARGEST.values(), ids=LARGEST)
def test_the_worst_object_is_valid_and_costs_little_time_and_memory(spec):
    text = json.dumps(document(spec), ensure_ascii=False)
    assert [str(problem) for problem in validate_bytes(text.encode(), "job.json").problems] == []
    parse_job(json.loads(text))  # what is built once for all
    bytes_kept = min(memory_of(text) for _ in range(3))  # threads of other tests allocate, too
    # One wide character makes Python keep all of a text in four bytes each; no script of a few pages may fail by that.
    assert bytes_kept < KEPT_BYTES * (4 if not spec.get("script", "").isascii() else 1) + OWN_BYTES
    kept = json.loads(text)
    assert calls_of(lambda: parse_job(kept)) < CALLS
    assert seconds_of(lambda: parse_job(kept)) < TIMES_REFERENCE * seconds_of(reference)


def memory_of(text):
    """Return the memory that a job takes, beside the allocations of other threads at that moment."""
    tracemalloc.start()
    job = parse_job(json.loads(text))
    traced, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(job, TrainingJob)
    return traced


def test_metadata_of_any_size_takes_little_memory():
    """A CRD sets no limits there; the API server stores up to 1.5 MB of it."""
    job = document({"script": "1"})
    listed = range(4000)
    owner = {"apiVersion": "v1", "kind": "ConfigMap"}
    job["metadata"] |= {
        "labels": {f"example.com/{number}": "x" * 63 for number in listed},
        "annotations": {"example.com/notes": "x" * 250_000, TRIAL: "x" * 250_000},
        "finalizers": [*(f"example.com/{number}" for number in listed), "orphan"],
        "ownerReferences": [owner | {"name": f"c{number}", "uid": f"{number}"} for number in listed],
    }
    text = json.dumps(job)
    parse_job(json.loads(text))
    tracemalloc.start()
    found = parse_job(json.loads(text))
    bytes_kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found, TrainingJob)
    assert bytes_kept < KEPT_BYTES
    assert "orphan" in found.metadata.finalizers


def bytes_of(schema):
    """Return the most bytes of text that a value of a schema can be, if Python keeps a character in up to four."""
    match schema.get("type"):
        case "string" if "enum" in schema:
            return 0
        case "string":
            wide = re.search(schema.get("pattern", ""), "/" + EMOJI) is not None
            return schema["maxLength"] * (4 if wide else 1)
        case "array":
            return schema["maxItems"] * bytes_of(schema["items"])
        case "object" if "additionalProperties" in schema:
            return schema["maxProperties"] * (MAX_LABEL_KEY + bytes_of(schema["additionalProperties"]))
        case "object":
            return sum(map(bytes_of, schema["properties"].values()))
    return 0


def test_every_field_that_its_limits_allow_to_be_large_has_a_rule_on_its_size_and_is_tested_here():
    schema = copy.deepcopy(spec_schema()["properties"])  # it is made once
    params = schema["trainer"]["properties"].pop("params")
    assert params["maxProperties"]
    large = {name for name, each in schema.items() if bytes_of(each) > KEPT_BYTES}
    assert large == {rule.field for rule in SIZE if rule.scope == ""}
    assert large <= {name.partition(":")[0] for name in LARGEST}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_no_pattern_of_others_is_compiled(pattern, monkeypatch):
    from re import _compiler

    parse_job(document({"script": "1", "metrics": {"patterns": ["(?P<loss>a)"]}}))  # patterns of our own
    monkeypatch.setattr(_compiler, "compile", lambda *_: pytest.fail("compiled"))
    job = parse_job(document({"script": "1", "metrics": {"patterns": [pattern]}}))
    assert isinstance(job, TrainingJob)


@pytest.mark.parametrize("case", too_large(), ids=lambda case: case["name"])
def test_oversized_objects_are_rejected_and_not_kept_even_if_an_old_crd_accepted_them(case):
    found = parse_job(document(case["spec"]))
    if case["at"].startswith("spec.trainer.params") and case.get("server", True):
        assert len(found.spec.trainer.params.json) <= MAX_BYTES, "few bytes, whatever their form"
    else:
        assert isinstance(found, InvalidJob)
        assert len(found.problem) <= 300


BUILT_IN = {name: spec["trainer"]["params"] for name, spec in LARGEST.items() if name.startswith("params")}


@pytest.mark.parametrize("params", BUILT_IN.values(), ids=BUILT_IN)
def test_parameters_of_a_built_in_trainer_are_judged_as_quickly(params):
    named = Params(dict(zip(params_schema("cvrp")["properties"], params.values(), strict=False)))
    assert params_faults("cvrp", named)
    for given in (named, Params(params)):
        assert calls_of(lambda given=given: params_faults("cvrp", given)) < CALLS
        assert seconds_of(lambda given=given: params_faults("cvrp", given)) < TIMES_REFERENCE * seconds_of(reference)
