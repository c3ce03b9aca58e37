"""All of Unicode from a program or a command line to a job, a file and back; YAML that no text breaks out of."""

import json
import os

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from torchyard.api.resource import job_document
from torchyard.api.validation.validate import validate_bytes, validate_document
from torchyard.api.validation.yaml_tree import read
from torchyard.api.yaml_text import comment, dumped
from torchyard.sweeps.validate import validate_sweep_document

# Any character that UTF-8 can hold, and often those that mean something to YAML, JSON or a terminal.
TEXTS = st.text() | st.text("y\nn \t'\"#:-|>\u2028\x85\\u0aé😀\r\ufeff\u200e,[]{}&*!%@`?~1e.x", max_size=12)
LEAVES = TEXTS | st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4))
ARGUMENTS = st.lists(TEXTS.filter(lambda text: "\0" not in text), max_size=4)


def job(*arguments, **spec):
    kind = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "job"}}
    return {**kind, "spec": {"command": ["x"], "args": list(arguments), **spec}}


@given(VALUES)
@example(["+_42", "0E1_1", "12:30", "007", "1e3", "0o17", "y", ".inf", "2026-11-29"])
def test_every_reader_of_yaml_reads_what_was_written(value):
    text = dumped({"key": value})
    assert all(each.isprintable() or each == "\n" for each in text)
    assert yaml.safe_load(text) == {"key": value}
    assert read(text)[0][0].plain == {"key": value}


@given(VALUES, st.booleans(), st.sampled_from([None, 2, "\t"]))
def test_json_of_any_writer_is_read_as_json(value, ascii_only, indent):
    text = json.dumps({"key": value}, ensure_ascii=ascii_only, indent=indent)
    assert read(text)[0][0].plain == {"key": value}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"a": {"é" * 400: 1, "k" * 1100: {"b": '": ' * 500}}}),
        json.dumps({"a": {"k" * 1100 + "\x85": "😀"}}, ensure_ascii=False),
        '\n\t{"a"\n\t:\r\n\t"\\":", "b" :[1\n,{"\\/c"\n:2}]}',
    ],
)
def test_json_with_long_keys_tabs_and_breaks_before_colons_is_read(text):
    document = read(text)[0][0]
    assert document.plain == json.loads(text)
    last = list(document.value.values())[-1]
    assert last.line == text.count("\n", 0, text.rindex("[") if "[" in text else 0) + 1


@given(ARGUMENTS)
def test_a_text_is_the_same_in_a_dict_a_change_a_saved_file_and_json(arguments):
    (direct,) = validate_document(job(*arguments), "job").jobs
    assert direct.spec.args == arguments
    document = job_document(direct, with_status=False)
    for text in (dumped(document), comment(" ".join(arguments)) + dumped(document), json.dumps(document)):
        (again,) = validate_bytes(text.encode(), "job.yaml").jobs
        assert again == direct


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (os.fsdecode(b"a\xff"), "character 2 is the byte 0xff, which is not UTF-8"),
        ("🎉\ud83c", "character 2 is U+D83C, half of a surrogate pair"),
        ("a\0", "character 2 is NUL"),
    ],
)
def test_what_no_job_can_hold_is_rejected_with_its_field_and_character(text, what):
    for document, path in (
        (job("fine", text), "spec.args[1]"),
        (job(env=[{"name": "A", "value": text}]), "spec.env[0].value"),
        (job(podAnnotations={"a": text}), "spec.podAnnotations.a"),
        (job(workingDir=text), "spec.workingDir"),
    ):
        (problem,) = validate_document(document, "job").problems
        assert (problem.path, problem.what) == (path, what)
    if what.endswith("NUL"):
        return
    (problem,) = validate_document(job(), "job", [f"args=['{text}']"]).problems
    assert problem.path == "args"
    assert "surrogate" in problem.what or "UTF-8" in problem.what
    (problem,) = validate_sweep_document({"spec": {"parameters": [{"path": "lr", "choice": [text]}]}}, "s").problems
    assert problem.path == "spec.parameters[0].choice[0]"


def test_a_crafted_argument_stays_an_argument():
    crafted = "two\nspec: {nodes: 9}\n#"
    text = comment(f"Written by: torchyard run p.py -- '{crafted}'") + dumped(job(crafted))
    (read_again,) = validate_bytes(text.encode(), "job.yaml").jobs
    assert (read_again.spec.nodes, read_again.spec.args) == (1, [crafted])
    assert text.startswith("# Written by: torchyard run p.py -- 'two\\nspec: {nodes: 9}\\n#'\napiVersion")


def test_written_yaml_is_readable():
    assert dumped(job("--lr", "1e-3", "two\nlines\n", "🎉 party", "yes", "a b", script="import x\nx()\n")) == (
        "apiVersion: torchyard.dev/v1alpha1\nkind: TrainingJob\nmetadata:\n  name: job\nspec:\n  command:\n  - x\n"
        '  args:\n  - "--lr"\n  - "1e-3"\n  - |\n    two\n    lines\n'
        "  - 🎉 party\n  - 'yes'\n  - a b\n  script: |\n    import x\n    x()\n"
    )
