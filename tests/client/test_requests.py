"""What can be run, and what is said of all else; curves as a table."""

import json
from pathlib import Path

import pytest

import torchyard as ty
from torchyard.api.backends import on_this_machine
from torchyard.api.names import SOURCE_FOLDER, SWEEP, TRIAL
from torchyard.api.resource import API_VERSION, KIND, read_job
from torchyard.client.jobs import creatable
from torchyard.client.metrics import rows_of, table_of
from torchyard.client.request import requested
from torchyard.client.start import not_a_trial

SPEC = {"script": "print(1)"}


def test_a_model_a_dict_and_a_file_mean_the_same_job(tmp_path):
    document = {"metadata": {"name": "one"}, "spec": {**SPEC, "nodes": 2}}
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps({"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob", **document}))
    found = [requested(target, "local").job for target in (document, read_job(document), str(file), file)]
    assert all(job.spec == found[0].spec and job.metadata.name == "one" for job in found)
    changed = requested(document, "local", name="two", overrides={"nodes": 3}).job
    assert (changed.metadata.name, changed.spec.nodes) == ("two", 3)


@pytest.mark.parametrize(
    ("target", "settings", "parts"),
    [
        ({"metadata": {"name": "a"}, "spec": {**SPEC, "node": 2}}, {}, ["spec.node", "did you mean nodes"]),
        ({"metadata": {"name": "a"}}, {}, ["spec"]),
        ({"metadata": {"name": "a"}, "spec": {"script": {1, 2}}}, {}, ["cannot be written as JSON", "use dicts"]),
        ({"metadata": {"name": "a"}, "spec": SPEC}, {"overrides": {"nodes": float("nan")}}, ["overrides['nodes']"]),
        (
            {"metadata": {"name": "a"}, "spec": SPEC},
            {"overrides": {"noodles": 1}},
            ["overrides['noodles']: spec.noodles"],
        ),
        ({"metadata": {"name": "a"}, "spec": SPEC}, {"overrides": {"a..b": 1}}, ["overrides['a..b']: not the path of"]),
        ({"metadata": {"name": "a"}, "spec": SPEC}, {"arguments": {"lr": 1}}, ["takes none", "@torchyard.job"]),
        ("missing.yaml", {}, ["missing.yaml", "cannot be read"]),
        (
            "notebook.ipynb",
            {},
            ["a notebook is not a program", "nbconvert --to script notebook.ipynb", "@torchyard.job"],
        ),
        ("package", {}, ["a folder is not a job file", "`torchyard run -m package` starts a package"]),
        ("pakage.py.yaml", {}, ["there is no such file", "did you mean package.py.yaml?"]),
        (
            {"metadata": {"name": "a"}, "kind": "TrainingJob", "spec": {"objective": {}, "jobTemplate": {}}},
            {},
            ["kind: spec has the fields of a sweep, and this is a TrainingJob: use kind: TrainingSweep"],
        ),
        ("train.py", {}, ["train.py: there is no such file", "give the path of a script"]),
        ("train.py", {"arguments": {"lr": 1}}, ["is not a list of strings", "arguments=['--lr', '1e-3']"]),
        ("train.py", {"arguments": ["--lr", 1]}, ["is not a list of strings"]),
        (ty.job(nodes=2)(test_a_model_a_dict_and_a_file_mean_the_same_job), {"arguments": ["--lr"]}, ["has no names"]),
        (42, {}, ["42 is not a job", "give a TrainingJob"]),
        ({"metadata": {"name": "a"}, "spec": SPEC}, {"overrides": [1]}, ["overrides: [1] is not a dict"]),
        ({"kind": "TrainingSweep"}, {}, ["this dict is a TrainingSweep, not a job", "torchyard.sweep runs it"]),
        (print, {}, ["is not a job", "@torchyard.job"]),
    ],
)
def test_an_invalid_job_is_rejected_with_field_and_fix(target, settings, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("package").mkdir()
    for name in ("package/__init__.py", "package.py.yaml", "notebook.ipynb"):
        Path(name).touch()
    with pytest.raises(ty.TorchYardError) as error:
        requested(target, "local", **settings)
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_a_script_is_the_job_that_the_command_line_makes_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("My_train.py").write_text("print(1)\n")
    here = requested("My_train.py", "local", arguments=["--lr", "1e-3"], overrides={"nodes": 2}).job
    assert (here.metadata.name, here.spec.nodes) == ("my-train", 2)
    assert (here.spec.command, here.spec.args) == (["torchrun", "--", "My_train.py"], ["--lr", "1e-3"])
    there = requested(Path("My_train.py"), "cluster", name="other").job
    assert (there.metadata.name, there.spec.script, there.spec.command) == ("other", "print(1)\n", [])


def test_a_printed_job_starts_where_it_was_started(tmp_path, monkeypatch, caplog):
    home = tmp_path / "project"
    home.mkdir()
    printed = {"metadata": {"name": "a", "annotations": {SOURCE_FOLDER: str(home)}}, "spec": {"command": ["./x"]}}
    monkeypatch.chdir(tmp_path)
    Path("job.json").write_text(json.dumps({"apiVersion": API_VERSION, "kind": KIND, **printed}))
    for target in (printed, read_job(printed), "job.json"):
        assert requested(target, "local").folder == home
    home.rmdir()
    assert requested("job.json", "local").folder == tmp_path
    assert f"was started in {home}, which does not exist here; {tmp_path} is used" in caplog.text


def test_what_makes_a_job_a_trial_or_one_of_this_machine_does_not_travel():
    texts = {SWEEP: "s", TRIAL: "{}", SOURCE_FOLDER: "/x", "mine": "1"}
    job = read_job(
        {"metadata": {"name": "a", "labels": texts, "annotations": texts}, "spec": {**SPEC, "suspend": True}}
    )
    metadata = creatable(job, "a", None)["metadata"]
    assert metadata == {"name": "a", "labels": {"mine": "1"}, "annotations": {"mine": "1"}}
    alone = not_a_trial(job).metadata
    assert {SWEEP, TRIAL}.isdisjoint([*alone.labels, *alone.annotations])
    assert not on_this_machine(job).spec.suspend


def test_a_sweep_is_sent_to_the_call_for_sweeps(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text("apiVersion: torchyard.dev/v1alpha1\nkind: TrainingSweep\nmetadata: {name: tune}\n")
    with pytest.raises(ty.TorchYardError, match=r"sweep\.yaml is a TrainingSweep, not a job"):
        requested(file, "local")


def test_curves_are_rows_by_step(tmp_path):
    lines = [
        b'{"step": 1, "loss": 2.0, "note": "x", "ok": true}\n', b'{"step": 2, "loss": 1.5}\n',
        b"[]\n", b'{"step": "x"}\n',
        b'{"step": 2, "evalLoss": 9}\n', b'{"step": 1, "loss": 2.5}\n', b'{"step": 3, "lo',
    ]  # fmt: skip
    table = rows_of(lines)
    assert table == [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 1.5, "evalLoss": 9}]
    assert table.columns == ["step", "loss", "evalLoss"]
    assert table.column("evalLoss") == [(2, 9)]
    with pytest.raises(ty.TorchYardError, match="there is no metric 'accuracy'; there are step, loss, evalLoss"):
        table.column("accuracy")
    assert table_of(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("table", [ty.MetricsTable, ty.TrialsTable])
def test_a_data_frame_needs_pandas_which_is_no_dependency(monkeypatch, table):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ty.TorchYardError, match="needs pandas, which is not installed; `pip install pandas`"):
        table().to_pandas()
