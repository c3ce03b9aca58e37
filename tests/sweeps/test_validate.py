"""`torchyard validate sweep.yaml`: what is rejected before the first trial, with line, path and fix."""

from pathlib import Path

import pytest
import yaml
from msgspec import convert

from torchyard.api.spec import TrainingJobSpec
from torchyard.cli.main import main
from torchyard.sweeps.reference import reference_markdown
from torchyard.sweeps.rules import trainer_metrics
from torchyard.sweeps.space import trial_spec
from torchyard.sweeps.validate import validate_sweep, validate_sweep_bytes

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/sweep.yaml"
TEXT = EXAMPLE.read_text()


def test_the_example_is_valid(capsys):
    assert validate_sweep(EXAMPLE).problems == ()
    assert main(["validate", str(EXAMPLE), str(ROOT / "examples/cvrp.yaml")]) == 0
    assert "valid (sweep tune, 20 trials)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "path", "said"),
    [
        ("params.lr,", "params.lrx,", "spec.parameters[0].path", "did you mean trainer.params.lr?"),
        ("trainer.params.epochs", "nodez", "spec.parameters[1].path", "did you mean nodes?"),
        ("trainer.params.epochs", "epochs", "spec.parameters[1].path", "did you mean trainer.params.epochs?"),
        ("trainer.params.epochs", "spec.nodes", "spec.parameters[1].path", "did you mean nodes?"),
        ("trainer.params.epochs", "trainer.paramz", "spec.parameters[1].path", "did you mean trainer.params?"),
        ("trainer.params.epochs", "trainer.params.a.b.c", "spec.parameters[1].path", "docs/reference lists the fields"),
        ("trainer.params.epochs", "env.LR", "spec.parameters[1].path", "did you mean env[LR]?"),
        ("trainer.params.epochs", "args.lr", "spec.parameters[1].path", "name an argument by its place, args[1]"),
        ("trainer.params.epochs", "trainer.params", "spec.parameters[1].path", "is a section or a list"),
        ("trainer.params.epochs", "trainer.name", "spec.parameters[1].path", "cannot differ between trials"),
        (
            "min: 2, max: 8",
            "min: 0, max: 8",
            "spec.parameters[1].int.min",
            "0 is too small: use a number of at least 1",
        ),
        ("min: 2, max: 8", "min: 8, max: 2", "spec.parameters[1].int", "min 8 is not below max 2"),
        ("int: {min: 2", "float: {min: 2.5", "spec.parameters[1].float", "is a whole number: give int"),
        ("min: 0.0003, max: 0.03, log: true", "min: -1.7e308, max: 1.7e308", "spec.parameters[0].float", "is too wide"),
        ("[32, 64, 128]", '["a\\0b"]', "spec.parameters[2].choice[0]", "character 2 is NUL"),
        ("min: 0.0003", "min: 0", "spec.parameters[0].float.min", "0 has no logarithm"),
        ("[32, 64, 128]", "[32, x]", "spec.parameters[2].choice[1]", "expected a whole number, got text 'x'"),
        ("[32, 64, 128]", "[32, 32]", "spec.parameters[2].choice[1]", "32 occurs twice (first as spec.param"),
        (
            "[32, 64, 128]",
            "[{a: 1}, 2]",
            "spec.parameters[2].choice[0]",
            "expected one value, got a mapping: use a text",
        ),
        (", choice: [32, 64, 128]", "", "spec.parameters[2]", "not exactly one of float, int and choice"),
        ("evalReturn", "evalRetrun", "spec.objective.metric", "did you mean evalReturn?"),
        ("name: tpe", "name: grid", "spec.algorithm.name", "has a range without a step"),
        ("name: tpe", "name: tpo", "spec.algorithm.name", "use cmaes, gp, grid, random or tpe"),
        ("cartpole", "cartpol", "spec.jobTemplate.spec.trainer.params.environment", "did you mean cartpole?"),
        (
            "128]}",
            "128], conditions: [{path: x, values: [1]}]}",
            "spec.parameters[2].conditions[0].path",
            "is not a par",
        ),
        ("maxTrials: 20", "maxTrails: 20", "spec.maxTrails", "did you mean maxTrials?"),
        (
            "maxTrials: 20",
            "firstTrials: [{trainer.params.lr: 9}]\n  maxTrials: 20",
            "spec.firstTrials[0]",
            "is never 9",
        ),
        (
            "maxTrials: 20",
            "firstTrials: [{}, {lr: 1}]\n  maxTrials: 20",
            "spec.firstTrials[1]",
            "mean trainer.params.lr?",
        ),
        (
            "maxTrials: 20",
            "firstTrials: [{}, {}, {}]\n  maxTrials: 2",
            "spec.firstTrials",
            "3 trials, more than maxTrials",
        ),
        ("name: tune", f"name: {'t' * 49}", "metadata.name", "49 characters"),
        ("    spec:\n", "    spec:\n      suspend: true\n", "spec.jobTemplate.spec.suspend", "the sweep decides"),
    ],
)
def test_a_mistake_is_named_with_its_path_and_fix(old, new, path, said):
    assert old in TEXT
    problems = validate_sweep_bytes(TEXT.replace(old, new).encode(), "sweep.yaml").problems
    assert [problem.path for problem in problems] == [path]
    assert said in str(problems[0])
    assert problems[0].line > 1


def test_an_empty_list_of_parameters_is_named_with_its_line():
    head, _, tail = TEXT.partition("  - {path: trainer.params.lr")
    text = head.rstrip() + " []\n  maxTrials" + tail.partition("  maxTrials")[2]
    (problem,) = validate_sweep_bytes(text.encode(), "sweep.yaml").problems
    assert str(problem).endswith("spec.parameters: empty: give at least one entry")
    assert problem.line > 1


def test_a_job_of_this_kind_is_named_once():
    text = "apiVersion: torchyard.dev/v1alpha1\nkind: TrainingSweep\nmetadata: {name: a}\nspec: {command: [x]}\n"
    (problem,) = validate_sweep_bytes(text.encode(), "sweep.yaml").problems
    assert str(problem) == (
        "sweep.yaml:2: kind: spec has the fields of a job, and this is a TrainingSweep: use kind: TrainingJob"
    )


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("args[1]", ""),
        ("env[LR]", ""),
        ("env[NEW]", ""),
        ("args[2]", "args has 2 items, and none at 2: list it in jobTemplate.spec.args"),
        ("command[0]", "command has 0 items"),
        ("args[--amp]", "a switch, which cannot be 1: give choice: [true, false]"),
        ("args", "'args' is a section or a list: name one element: args[1]"),
        ("env", "name one element: env[NAME]"),
        ("env[RANK]", "'RANK' is reserved"),
        (
            "volumes[0]",
            "not a field, an argument, a switch or a variable: trainer.params.lr, args[1], args[--amp], env[LR]",
        ),
    ],
)
def test_of_lists_only_arguments_and_variables_can_be_tuned(path, said):
    document = yaml.safe_load(TEXT)
    document["spec"]["parameters"] = [{"path": path, "choice": [1, 2.5]}]
    del document["spec"]["earlyStopping"]
    script = {"script": "pass", "args": ["--lr", "0.1"], "env": [{"name": "LR", "value": "0.1"}]}
    document["spec"]["jobTemplate"]["spec"] = {**script, "metrics": {"patterns": ["evalReturn=(?P<evalReturn>.*)"]}}
    found = [str(each) for each in validate_sweep_bytes(yaml.safe_dump(document).encode(), "s.yaml").problems]
    assert [said in each for each in found] == ([True] if said else []), found


SCRIPT = """\
apiVersion: torchyard.dev/v1alpha1
kind: TrainingSweep
metadata: {{name: texts}}
spec:
  objective: {{metric: loss, goal: minimize}}
  algorithm: {{name: grid}}
  parameters:
  - {{path: "{path}", {values}}}
  jobTemplate:
    spec: {{script: pass, args: [--lr, "1", --amp], trainer: {trainer}}}
"""


@pytest.mark.parametrize(
    ("path", "values", "said"),
    [
        ("args[1]", "choice: [yes]", """choice[0]: args[1] would be 'true', not yes: quote it: "yes\""""),
        ("args[1]", "choice: [x, 007]", """choice[1]: args[1] would be '7', not 007: quote it: "007\""""),
        ("env[A]", "choice: [1e3]", """env[A] would be '1000.0', not 1e3: quote it: "1e3\""""),
        ("env[A]", "choice: [0x10]", """env[A] would be '16', not 0x10: quote it: "0x10\""""),
        ("env[A]", "choice: [3.10]", """env[A] would be '3.1', not 3.10: quote it: "3.10\""""),
        ("env[A]", "choice: [~]", "choice[0]: null is not one value: give a text, a number, true or false"),
        ("env[A]", "choice: [12:30, 2026-11-29, true, 32, 0.5, 1e-05]", ""),
        ("env[A]", 'choice: ["1", 1]', "choice[1]: 1 is equal to '1' (first as spec.parameters[0].choice[0])"),
        ("args[--amp]", "choice: [yes, no]", ""),
        ("args[--amp]", 'choice: ["true"]', "args[--amp] is a switch, which cannot be 'true'"),
        ("args[--amp]", "int: {min: 0, max: 1}", "int: args[--amp] is a switch: an argument that the program has"),
        ("args[--amp]", "choice: [true]}\n  - {path: 'args[2]', choice: [a]", "--amp is args[2], another parameter"),
    ],
)
def test_text_for_a_program_is_what_the_file_says(path, values, said):
    text = SCRIPT.format(path=path, values=values, trainer="null")
    found = [str(each) for each in validate_sweep_bytes(text.encode(), "s.yaml").problems]
    assert [said in each for each in found] == ([True] if said else []), found


def test_text_of_a_field_is_named_as_it_is_written_and_true_stays_possible_where_it_is_meant():
    document = TEXT.replace("trainer.params.epochs", "image").replace("int: {min: 2, max: 8}", "choice: [off]")
    (problem,) = validate_sweep_bytes(document.encode(), "s.yaml").problems
    assert str(problem).endswith('image: expected text, got false (true or false): quote it: "off"')
    document = TEXT.replace("trainer.params.epochs", "parallelism.compile").replace(
        "int: {min: 2, max: 8}", "choice: [true, no]"
    )
    assert validate_sweep_bytes(document.encode(), "s.yaml").problems == ()


def test_an_argument_and_a_variable_get_their_values_as_text():
    script = {"command": ["a", "b"], "args": ["--lr", "0.1"], "env": [{"name": "LR", "value": "1"}, {"name": "X"}]}
    template = convert(script, TrainingJobSpec)
    made = trial_spec(template, {"args[1]": 0.001, "command[0]": "c", "env[LR]": 1e-05, "env[NEW]": True})
    assert (made.args, made.command) == (["--lr", "0.001"], ["c", "b"])
    assert {each.name: each.value for each in made.env} == {"LR": "1e-05", "X": "", "NEW": "true"}
    assert template.args == ["--lr", "0.1"]


def test_a_switch_is_an_argument_that_a_trial_has_or_lacks():
    template = convert({"command": ["a", "-v"], "args": ["--amp", "x", "--amp", "0"]}, TrainingJobSpec)

    def of(values):
        made = trial_spec(template, values)
        return made.command, made.args

    assert of({"args[--amp]": True}) == (["a", "-v"], ["--amp", "x", "--amp", "0"])
    assert of({"args[--amp]": False, "args[3]": 5}) == (["a", "-v"], ["x", "5"])
    assert of({"args[3]": "--amp", "args[--amp]": False}) == (["a", "-v"], ["x", "--amp"])
    assert of({"args[--x.y]": True, "command[-v]": False}) == (["a"], ["--amp", "x", "--amp", "0", "--x.y"])


NO_TOTAL = "spec.earlyStopping: the patterns of the job do not find the total number of steps"
SCORE = "(?P<step>.*): score=(?P<evalReturn>.*)"


@pytest.mark.parametrize(
    ("job", "parameter", "said"),
    [
        ({"metrics": {"patterns": ["(?P<score>.*)/(?P<total_steps>.*)"]}}, "nodes", "never reports 'evalReturn'"),
        ({"metrics": {"patterns": [SCORE]}}, "nodes", NO_TOTAL),
        ({"metrics": {"patterns": [SCORE], "totalSteps": 9}}, "nodes", ""),
        ({"metrics": {"patterns": [SCORE]}}, "metrics.totalSteps", ""),
        ({"metrics": {"patterns": [SCORE, "of (?P<totalSteps>.*)"]}}, "nodes", ""),
        ({}, "nodes", ""),  # the program may report by itself
        ({"launcher": {"kind": "none"}}, "nodes", "launcher.kind: without an agent nothing reads the metrics"),
    ],
)
def test_a_script_is_known_by_its_patterns_and_has_rungs_where_its_steps_are_known(job, parameter, said):
    document = yaml.safe_load(TEXT)
    document["spec"]["parameters"] = [{"path": parameter, "choice": [1, 2]}]
    document["spec"]["jobTemplate"]["spec"] = {"script": "pass", **job}
    found = [str(each) for each in validate_sweep_bytes(yaml.safe_dump(document).encode(), "s.yaml").problems]
    assert [said in each for each in found] == ([True] if said else []), found


def test_an_environment_of_ones_own_may_report_anything():
    document = yaml.safe_load(TEXT.replace("evalReturn", "score"))
    document["spec"]["parameters"] = [{"path": "trainer.params.lr", "float": {"min": 0.001, "max": 0.01}}]
    document["spec"]["jobTemplate"]["spec"]["trainer"] = {"name": "vlm", "params": {"environment": "games:Maze"}}
    assert validate_sweep_bytes(yaml.safe_dump(document).encode(), "s.yaml").problems == ()


@pytest.mark.parametrize(
    ("metric", "trainer", "parameter", "said"),
    [
        ("evalLength", {"name": "vecrl"}, {}, "never reports evalLength with trainer.params.environment 'cartpole'"),
        ("evalLength", {"name": "vecrl", "params": {"environment": "snake"}}, {}, ""),
        ("evalReturn", {"name": "vecrl", "params": {"environment": "snake"}}, {}, "environment 'snake'"),
        ("evalReturn", {"name": "vecrl", "params": {"environment": "Acrobot-v1"}}, {}, ""),
        ("evalLength", {"name": "vecrl"}, {"path": "environment", "choice": ["cartpole", "snake"]}, ""),
        ("score", {"name": "vecrl"}, {"path": "environment", "choice": ["games:Maze", "snake"]}, ""),
        ("envStepsPerSecond", {"name": "vecrl"}, {}, ""),
        ("memoryPeakBytes", {"name": "cvrp"}, {}, ""),
        ("reward", {"name": "lm"}, {}, "never reports reward with trainer.params.method 'sft'"),
        ("reward", {"name": "lm", "params": {"method": "grpo"}}, {}, ""),
        ("evalReward", {"name": "lm", "params": {"method": "grpo"}}, {}, ""),
        ("preferenceAccuracy", {"name": "lm"}, {"path": "method", "choice": ["sft", "ppo"]}, "'sft' or 'ppo'"),
        ("validActions", {"name": "vla"}, {}, ""),
        ("tokenLoss", {"name": "vla"}, {}, "never reports tokenLoss with trainer.params.head 'flow'"),
    ],
)
def test_a_metric_counts_as_reported_where_the_parameters_allow_it(metric, trainer, parameter, said):
    document = yaml.safe_load(TEXT)
    tuned = {"path": "lr", "float": {"min": 0.001, "max": 0.01}, **parameter}
    if parameter:
        del tuned["float"]
    document["spec"]["objective"]["metric"] = metric
    document["spec"]["parameters"] = [{**tuned, "path": f"trainer.params.{tuned['path']}"}]
    document["spec"]["jobTemplate"]["spec"]["trainer"] = trainer
    problems = validate_sweep_bytes(yaml.safe_dump(document).encode(), "s.yaml").problems
    assert [problem.path for problem in problems] == (["spec.objective.metric"] if said else [])
    assert said in "".join(map(str, problems))


def test_the_trainers_name_the_metrics_that_sweeps_go_by():
    for trainer, metric in {"cvrp": "cost", "vecrl": "evalReturn", "lm": "evalLoss", "vla": "successRate"}.items():
        assert {metric, "loss"} <= set(trainer_metrics(trainer))


def test_the_reference_page_names_every_field():
    page = reference_markdown()
    assert page == (ROOT / "docs/reference/trainingsweep.md").read_text()
    for field in ("objective", "earlyStopping", "parallelTrials", "maxFailed", "conditions", "jobTemplate"):
        assert f"`{field}`" in page


@pytest.mark.parametrize("name", ["../tune", "T", "t" * 49])
def test_a_name_is_never_a_path(name, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    assert main(["run", str(EXAMPLE), "--name", name]) == 64
    assert main(["sweep", "rm", name]) == 64
    said = capsys.readouterr().err
    assert "is not a valid name of a sweep" in said
    assert f"There is no sweep `{name}`" in said
    assert not (tmp_path / "home").exists()
