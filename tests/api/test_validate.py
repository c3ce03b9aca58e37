"""`validate`: every fault at once, each with file, line, field, value and fix; nothing a file holds makes it raise."""

import subprocess
import sys
import textwrap

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import calls_of

from torchyard.api.validation.validate import validate_bytes, validate_file
from torchyard.api.validation.yaml_tree import read
from torchyard.api.yaml_text import dumped

GOOD = """\
apiVersion: torchyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: cvrp}
spec:
  trainer: {name: cvrp}
"""


def said(text, *sets):
    data = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
    return [str(problem) for problem in validate_bytes(data, "job.yaml", sets).problems]


def test_all_faults_at_once_each_on_its_line():
    assert said(
        """\
        apiVersion: torchyard.dev/v1alpha1
        kind: TrainingJob
        metadata: {name: cvrp}
        spec:
          trainer:
            name: cvrp
            params: {stpes: 3}
          nodes: 0
          gpusPerNode: two
          parallelism:
            microBatchSize: half
          health: {spikes: "off"}
          comand: [x]
        """
    ) == [
        "job.yaml:7: spec.trainer.params.stpes: unknown field: did you mean steps?",
        "job.yaml:8: spec.nodes: 0 is too small: use a number from 1 to 1024",
        "job.yaml:9: spec.gpusPerNode: expected a whole number, got text 'two': use a whole number",
        (
            "job.yaml:11: spec.parallelism.microBatchSize: expected auto or a whole number from 1 to 16777216, "
            "got text 'half': use auto, or a whole number from 1 to 16777216"
        ),
        "job.yaml:12: spec.health.spikes: 'off' is not known: use ignore, rollback or warn",
        "job.yaml:13: spec.comand: unknown field: did you mean command?",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "job.yaml:1: the file is empty: start with apiVersion: torchyard.dev/v1alpha1"),
        ("# only a comment\n---\n", "job.yaml:1: the file is empty: start with apiVersion: torchyard.dev/v1alpha1"),
        ("just text", "job.yaml:1: expected a mapping, got text 'just text': write it like {apiVersion: ..."),
        ("[1, 2]", "job.yaml:1: expected a mapping, got a list: write it like {apiVersion: ..."),
        (GOOD + "\tnodes: 2\n", "job.yaml:6: a tab: indent with spaces, YAML allows no tabs"),
        (GOOD + "  nodes: 1\n  nodes: 2\n", "job.yaml:7: key nodes occurs twice (first on line 6): keep one of them"),
        (GOOD + "---\n" + GOOD, "job.yaml:7: 2 documents in one file: put each job into a file of its own"),
        (GOOD + "  image: a: b\n", "quote a value that holds ': '"),
        (GOOD.encode() + b"  image: \xff\n", "job.yaml:6: byte 0xff is not UTF-8: save the file as UTF-8"),
        (GOOD.encode("utf-16"), "job.yaml:1: byte 0xff is not UTF-8: save the file as UTF-8"),
        (GOOD + "  image: \x00\n", "remove the character"),
        (b"#" * (10 * 1024 * 1024), "job.yaml: larger than 1 MiB: a job is far smaller; is this the right file?"),
        (GOOD + "  script: !!python/object/apply:os.system [ls]\n", "the tag tag:yaml.org,2002:python/object/apply"),
        (GOOD + "  env: &a [*a]\n", "alias *a has no finished anchor: write the value out"),
        (GOOD + "  nodes: *nowhere\n", "alias *nowhere has no finished anchor"),
        (GOOD + "  <<: {nodes: 2}\n", "merge keys (<<) are not read: write the fields out"),
        (GOOD + "  ? [a]\n  : 1\n", "a key that is not plain text"),
        (GOOD + "  nodes: .inf\n", ".inf is not a finite number"),
        (GOOD + "  nodes: 1e999\n", "too large a number"),
        (GOOD + f"  nodes: {'9' * 5000}\n", "too large a number: give a smaller one"),
        (GOOD + f"  nodes: {'9' * 40}\n", "too large"),
        (GOOD + "  image: " + "[" * 5000 + "]" * 5000, "nested more than 64 deep"),
        (GOOD + "  nodes: {\n", "job.yaml:7: not YAML"),
        (GOOD.replace("v1alpha1", "v1"), "job.yaml:1: apiVersion: 'torchyard.dev/v1' is not known: "),
        (GOOD.replace("TrainingJob", "trainingjob"), "job.yaml:2: kind: 'trainingjob' is not known: did you mean"),
        (GOOD.replace("kind: TrainingJob\n", ""), "job.yaml:1: kind: missing: add it; kind: TrainingJob"),
        (GOOD.replace("{name: cvrp}\nspec", "{}\nspec"), "job.yaml:3: metadata.name: missing: add it; the name"),
        (GOOD.replace("metadata: {name: cvrp}\n", ""), "job.yaml:1: metadata: missing: add it; metadata: {name: ...}"),
        (GOOD.partition("spec:")[0], "job.yaml:1: spec: missing: add it; "),
        (GOOD.partition("spec:")[0] + "spec:\n", "job.yaml:1: spec: missing: add it; "),
        (GOOD.replace("name: cvrp}\nspec", "name: 7}\nspec"), "job.yaml:3: metadata.name: expected text, got"),
        (GOOD.replace("{name: cvrp}\nspec", "{nam: cvrp}\nspec"), "job.yaml:3: metadata.nam: unknown field"),
        (GOOD + "  args: [010]\n", 'spec.args[0]: expected text, got the number 8: quote it: "010"'),
        (GOOD + "  args: [&a 0x1F, *a]\n", 'spec.args[1]: expected text, got the number 31: quote it: "0x1F"'),
        (GOOD + "  args: [yes]\n", 'spec.args[0]: expected text, got true (true or false): quote it: "yes"'),
        (GOOD + "  args: [1e-3]\n", 'quote it: "1e-3"'),
        (GOOD + "  args: [y]\n", 'quote it: "y"'),
        (GOOD + "  args: [-1_0]\n", 'quote it: "-1_0"'),
        (GOOD + "  args: [~]\n", 'spec.args[0]: expected text, got nothing: quote it: "~"'),
        (GOOD + "  podLabels: {team: off}\n", 'quote it: "off"'),
        (GOOD + "  podLabels: {no: x}\n", 'job.yaml:6: the key no is not text: quote it: "no"'),
        (GOOD + "  metrics: {patterns: [0x10]}\n", 'quote it: "0x10"'),
    ],
)  # fmt: skip
def test_what_is_not_a_job_is_said_in_one_sentence(text, expected):
    assert any(expected in line for line in said(text)), said(text)


@pytest.mark.parametrize(
    ("trainer", "given", "fix"),
    [
        ("lm", "learning_rate", "use lr"),
        ("lm", "num_train_epochs", "use steps: epochs x records / batch; `torchyard dataset inspect` counts records"),
        ("lm", "per_device_train_batch_size", "use spec.parallelism.microBatchSize, the samples of a rank in one pass"),
        ("vecrl", "learningRate", "use lr"),
        ("vecrl", "bf16", "remove it"),
    ],
)
def test_a_parameter_by_the_name_of_another_trainer_is_answered_with_ours(trainer, given, fix):
    text = GOOD.replace("trainer: {name: cvrp}", f"trainer: {{name: {trainer}, params: {{{given}: 1}}}}")
    (problem,) = said(text)
    assert f"spec.trainer.params.{given}: unknown field: {fix}" in problem


def test_another_kind_of_object_is_said_once():
    assert said("apiVersion: apps/v1\nkind: Deployment\nmetadata: {}\nspec: {a: 1, b: 2}\n") == [
        "job.yaml:2: kind: 'Deployment' of 'apps/v1' is not a TrainingJob: use kind: TrainingJob"
    ]


def test_a_yaml_bomb_is_refused_with_less_work_than_a_job_takes():
    levels = "".join(f"  l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 10))
    problems: list[str] = []
    bomb = GOOD + "  l0: &l0 [x, x]\n" + levels
    assert calls_of(lambda: problems.extend(said(bomb))) < calls_of(lambda: said(GOOD))
    assert len(problems) == 1
    assert "more than 50000 values: a job holds far fewer; put data into a file of a volume" in problems[0]


def test_a_flood_of_faults_is_cut_short():
    problems = said(GOOD + "".join(f"  x{n}: 1\n" for n in range(5000)))
    assert len(problems) == 101
    assert problems[-1] == "job.yaml: 4900 more mistakes: correct these first"


def test_long_values_are_cut_in_messages():
    assert all(len(line) < 300 for line in said(GOOD + f"  nodes: {'x' * 100_000}\n  {'y' * 500}: 1\n"))


def test_numbers_and_truths_are_read_as_kubectl_reads_them():
    job = validate_bytes(
        (GOOD.replace("{name: cvrp}\n", "{name: cvrp, params: {lr: 1e-4, steps: 1_000}}\n", 2)
         .replace("{name: cvrp, params: {lr: 1e-4, steps: 1_000}}", "{name: cvrp}", 1)
         + "  env: [{name: T, value: 12:30:45}, {name: D, value: 2026-11-21}]\n  suspend: yes\n").encode(),
        "job.yaml",
    )  # fmt: skip
    assert job.problems == ()
    spec = job.jobs[0].spec
    assert spec.trainer.params == {"lr": 1e-4, "steps": 1000}
    assert [variable.value for variable in spec.env] == ["12:30:45", "2026-11-21"]
    assert spec.suspend is True


@pytest.mark.parametrize(
    "text",
    ["y", "1e3", "0o17", "-0x1F", "1_0", "12:30", "2026-11-29", "09", "+.5", ".inf", "~", "", "<<", "a: b", " a\n b\n",
     "a\u202eb", "\x1b[2J", "tab\t\n", "\r\n", "\ufeff", "\x85", "🎉", "1" * 500],
)  # fmt: skip
def test_text_that_is_written_as_yaml_is_read_as_the_same_text(text):
    documents, _ = read(dumped({text or "key": [text]}))
    assert documents[0].plain == {text or "key": [text]}


def test_anchors_work_where_they_are_harmless():
    text = GOOD.partition("spec:")[0] + "spec:\n  script: '1'\n  args: &a [x]\n  preload: *a\n"
    assert validate_bytes(text.encode(), "job.yaml").jobs[0].spec.preload == ["x"]


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm():
    assert validate_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode(), "job.yaml").problems == ()


def test_what_kubectl_prints_is_a_job_file():
    text = GOOD + "status: {state: Running, anything: [1]}\n"
    text = text.replace(
        "{name: cvrp}\nspec", "{name: cvrp, uid: u, generation: 2, finalizers: [a], managedFields: [{}]}\nspec"
    )
    job = validate_bytes(text.encode(), "job.yaml").jobs[0]
    assert (job.metadata.uid, job.metadata.generation) == ("u", 2)


def test_set_changes_the_file_before_it_is_checked():
    sets = ("nodes=2", "spec.trainer.params.steps=7", "env[0].name=A", "metadata.name=other", "preload=[numpy]")
    result = validate_bytes(GOOD.encode(), "job.yaml", sets)
    assert result.problems == ()
    job = result.jobs[0]
    assert (job.metadata.name, job.spec.nodes, job.spec.trainer.params) == ("other", 2, {"steps": 7})
    assert (job.spec.env[0].name, job.spec.preload) == ("A", ["numpy"])


def test_set_to_null_removes_a_field():
    assert validate_bytes((GOOD + "  nodes: 4\n").encode(), "f", ["nodes=null"]).jobs[0].spec.nodes == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes=0", "--set nodes=0: spec.nodes: 0 is too small: use a number from 1 to 1024"),
        ("nods=1", "--set nods=1: spec.nods: unknown field: did you mean nodes?"),
        ("nodes", "--set nodes: not of the form path=value: write it like nodes=2 or trainer.params.steps=100"),
        ("=3", "--set =3: not of the form path=value: write it like nodes=2 or trainer.params.steps=100"),
        ("a..b=3", "--set a..b=3: not of the form path=value: write it like nodes=2 or trainer.params.steps=100"),
        ("nodes.x=1", "--set nodes.x=1: spec.nodes: it is not a mapping: correct the path"),
        ("env[3].name=A", "--set env[3].name=A: spec.env[3]: the list has 0 items: use at most [0]"),
        ("nodes={", "--set nodes={: nodes: not YAML"),
    ],
)
def test_a_fault_of_set_names_the_set(text, expected):
    problems = said(GOOD + "  nodes: 1\n", text)
    assert len(problems) == 1
    assert problems[0].startswith(expected)


def test_a_fixed_fault_is_gone():
    assert said(GOOD + "  nodes: 0\n", "nodes=1") == []


def test_files_that_cannot_be_read(tmp_path):
    missing = validate_file(tmp_path / "none.yaml").problems
    assert (
        str(missing[0])
        == f"{tmp_path}/none.yaml: it cannot be read (No such file or directory): give the path of a readable file"
    )
    assert "Is a directory" in str(validate_file(tmp_path).problems[0])
    assert "cannot be read" in str(validate_file("a\0b").problems[0])
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as stream:
        stream.truncate(10 * 1024 * 1024)
    assert "larger than 1 MiB" in str(validate_file(huge).problems[0])
    good = tmp_path / "job.yaml"
    good.write_text(GOOD)
    assert validate_file(good, ["nodes=2"]).jobs[0].spec.nodes == 2


def test_importing_the_models_loads_neither_yaml_nor_jsonschema():
    code = (
        "import sys, torchyard.api.resource, torchyard.api.launch, torchyard.api.reasons;"
        "sys.exit(bool({'yaml', 'jsonschema'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_no_bytes_make_it_raise(data):
    assert validate_bytes(data, "job.yaml").problems
    validate_bytes(GOOD.encode() + data, "job.yaml")


@settings(max_examples=300)
@given(st.text(alphabet="abn:-[]{},&*!|>'\"#%@`?~ \n\t0123456789.e+_<", max_size=200))
def test_no_yaml_makes_it_raise(text):
    validate_bytes((GOOD + text).encode(), "job.yaml")
    validate_bytes(GOOD.encode(), "job.yaml", [text, "spec." + text, "nodes=" + text])


words = st.sampled_from(
    [
        "trainer",
        "name",
        "params",
        "mode",
        "command",
        "args",
        "env",
        "value",
        "script",
        "nodes",
        "parallelism",
        "strategy",
        "fsdp",
        "checkpoint",
        "interval",
        "steps",
        "seconds",
        "restart",
        "backoff",
        "initial",
        "max",
        "health",
        "metrics",
        "patterns",
        "volumes",
        "elastic",
        "minNodes",
        "maxNodes",
        "claim",
        "ddp",
        "auto",
        "cvrp",
        "1h",
        "0s",
        "RANK",
        "Never",
        "policy",
        "maxRestarts",
        "logging",
        "launcher",
        "kind",
        "resources",
        "cpu",
    ]
) | st.text(max_size=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=5),
    max_leaves=25,
)
sections = st.dictionaries(words, values, max_size=6)


@settings(max_examples=500)
@given(sections, st.sampled_from([{"trainer": {"name": "cvrp"}}, {"script": "1"}, {}]))
def test_no_spec_makes_it_raise_and_what_it_accepts_is_a_job(spec, base):
    document = yaml.safe_load(GOOD) | {"spec": base | spec}
    result = validate_bytes(yaml.safe_dump(document).encode(), "job.yaml")
    assert bool(result.jobs) != bool(result.problems)
    assert all(problem.what and problem.fix for problem in result.problems)
