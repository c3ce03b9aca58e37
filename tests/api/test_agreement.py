"""`torchyard validate` and the operator read any object; the API server's judgement is compared in the cluster tier."""

import itertools
import json
import os
import threading
import time

import pytest
from tests.support.generated_objects import ODD, generated, generated_sweeps

from torchyard.api import files
from torchyard.api.schema import spec_schema
from torchyard.api.validation.parse import RULES, parse_job
from torchyard.api.validation.validate import validate_bytes, validate_file
from torchyard.sweeps.parse import parse_sweep
from torchyard.sweeps.validate import validate_sweep_bytes


def document(spec):
    return {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "x", "namespace": "team", "uid": "u"},
        "spec": spec,
    }


def test_no_generated_object_raises_and_both_readers_agree():
    accepted, broken = 0, set()
    for whole in generated(1500):
        result = validate_bytes(json.dumps(whole, ensure_ascii=False).encode(), "job.json")
        found = parse_job(json.loads(json.dumps(whole)))
        assert found is not None
        broken |= {problem.fix for problem in result.problems}
        if not result.problems:
            accepted += 1
            assert type(found).__name__ == "TrainingJob", whole
    assert accepted > 100, "a generator that makes no valid object compares nothing"
    never = [rule.fix for rule in RULES if rule.fix not in broken]
    assert len(never) < len(RULES) / 8, f"no object breaks these rules: {never}"


def test_no_generated_sweep_raises_and_both_readers_agree():
    accepted = 0
    for whole in generated_sweeps(500):
        result = validate_sweep_bytes(json.dumps(whole, ensure_ascii=False).encode(), "sweep.json")
        metadata = {"name": "x", "namespace": "team", "uid": "u"}
        found = parse_sweep(json.loads(json.dumps(whole | {"metadata": metadata})))
        if not result.problems:
            accepted += 1
            assert type(found).__name__ == "TrainingSweep", whole
    assert accepted > 50, "a generator that makes no valid sweep compares nothing"


def fields(schema, path=()):
    for name, child in schema.get("properties", {}).items():
        yield (*path, name)
        yield from fields(child, (*path, name))
        if child.get("type") == "array" and "properties" in child["items"]:
            for inner in fields(child["items"]):
                yield (*path, name, 0, *inner)


def test_no_odd_value_of_any_field_raises():
    turns = itertools.cycle(range(4))
    for path, odd in ((path, odd) for path in fields(spec_schema()) for odd in ODD[next(turns) :: 4]):
        spec = inner = {}
        for part, following in itertools.pairwise(path):
            below = [] if following == 0 else {}
            if part == 0:
                inner.append(below)
                inner = below
            else:
                inner[part] = below
                inner = below
        if isinstance(inner, list):
            continue
        inner[path[-1]] = odd
        whole = document(spec)
        validate_bytes(json.dumps(whole, ensure_ascii=False).encode(), "job.json")
        parse_job(whole)


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("part", ["apiVersion", "kind", "metadata", "spec", "status"])
def test_no_odd_part_of_an_object_raises(part, odd):
    whole = document({"script": "1"}) | {part: odd}
    validate_bytes(json.dumps(whole, ensure_ascii=False).encode(), "job.json")
    parse_job(whole)


def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "job.yaml")
    (problem,) = validate_file(tmp_path / "job.yaml").problems
    assert "the file is empty" in str(problem)


def test_a_silent_pipe_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SILENCE_SECONDS", 0.01)
    os.mkfifo(tmp_path / "job.yaml")
    writer = os.open(tmp_path / "job.yaml", os.O_RDWR)
    (problem,) = validate_file(tmp_path / "job.yaml").problems
    os.close(writer)
    assert "nothing came from it" in str(problem)


def test_a_pipe_of_a_shell_is_read(tmp_path):
    reader, writer = os.pipe()
    text = json.dumps(document({"script": "print(1)" + "#" * 50_000})).encode()

    def write():
        for start in range(0, len(text), 10_000):
            os.write(writer, text[start : start + 10_000])
            time.sleep(0)
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    result = validate_file(f"/dev/fd/{reader}")
    thread.join()
    os.close(reader)
    assert [str(problem) for problem in result.problems] == []


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/", "/proc/self/mem", "/dev/tty", "\0", "x" * 300])
def test_a_missing_file_is_reported_at_once(path, monkeypatch):
    monkeypatch.setattr(files, "SILENCE_SECONDS", 0.2)
    assert validate_file(path).problems
