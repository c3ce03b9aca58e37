"""The end of a run and what comes after it: last words, and a name that is taken."""

import json
import re
import shlex

import pytest
from tests.cli.conftest import CommandLine
from tests.support.cli.recorded import FAILED, RUNNING, SUCCEEDED

from torchyard.api.resource import status_document
from torchyard.cli.commands.job_options import options_of, requested
from torchyard.cli.main import parser_of
from torchyard.cli.output import say
from torchyard.cli.views.outcome import outcome_of
from torchyard.client.start import RequestedJob, start
from torchyard.local.run import RunFolder, read_run

TRAINS = {"trainer": {"name": "cvrp"}}
SCRIPT = {"script": "pass"}


def job_file(torchyard: CommandLine, **spec: object) -> str:
    path = torchyard.folder / "job.yaml"
    kind = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob"}
    path.write_text(json.dumps({**kind, "metadata": {"name": "cvrp"}, "spec": spec}))
    return str(path)


def asked(*words: str) -> tuple[RequestedJob, str | None]:
    """The job of a command line of `run`, and the name it gives."""
    values = vars(parser_of("run").parse_args(words))
    return requested(options_of(values), "local", values["name"]), values["name"]


def test_a_run_ends_with_what_was_learned_what_was_written_and_the_next_command(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    learned = "cvrp succeeded in 4m: cost 4.870, loss 0.410, 1,000 steps, 8.25 steps/s"
    assert outcome_of(SUCCEEDED, folder) == [learned, "next: torchyard logs cvrp"]
    folder.checkpoints.mkdir()
    assert outcome_of(SUCCEEDED, folder) == [learned, "next: torchyard logs cvrp"]
    (folder.checkpoints / "DONE").touch()
    (folder.checkpoints / "environment.json").write_bytes(b"{}")
    assert outcome_of(SUCCEEDED, folder) == [learned, "next: torchyard logs cvrp"], "records of ours are no results"
    (folder.checkpoints / "plot.png").write_bytes(bytes(2048))
    (folder.checkpoints / "export" / "web").mkdir(parents=True)
    (folder.checkpoints / "export" / "web" / "index.html").write_bytes(bytes(10))
    assert outcome_of(SUCCEEDED, folder) == [
        learned,
        f"written to {folder.checkpoints}: export/web (10 B), plot.png (2 KiB)",
        "next: torchyard fetch cvrp export/web",
    ]


def test_files_of_a_finished_run_are_named_with_a_command_that_continues_from_them(
    torchyard, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(torchyard.home))
    status = {**status_document(SUCCEEDED.status), "checkpoint": {"step": 1000}}
    (torchyard.record("cvrp", status) / "checkpoints").mkdir()
    start(*asked(job_file(torchyard, **TRAINS)), notice=say)
    said = capsys.readouterr().err
    (old,) = (torchyard.home / "old" / "cvrp").iterdir()
    assert (old / "job.yaml").exists()
    assert f"what it left is in {old};" in said
    assert "given more than 1,000 steps" in said
    (command,) = re.findall("`torchyard (.*)`", said)
    _, *words = shlex.split(command.replace("NEW", "k2"))
    goes_on = read_run(start(*asked(*words)))
    assert goes_on is not None
    assert (goes_on.metadata.name, goes_on.spec.checkpoint.resume_from) == ("k2", str(old / "checkpoints"))
    assert capsys.readouterr().err == "", "nothing was in the way of a new name"


@pytest.mark.parametrize(("state", "spec"), [(FAILED, TRAINS), (SUCCEEDED, SCRIPT)], ids=["no checkpoint", "a script"])
def test_a_checkpoint_that_does_not_exist_is_not_proposed(torchyard, monkeypatch, capsys, state, spec) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(torchyard.home))
    torchyard.record("cvrp", status_document(state.status))
    start(*asked(job_file(torchyard, **spec)), notice=say)
    said = capsys.readouterr().err
    (old,) = (torchyard.home / "old" / "cvrp").iterdir()
    assert said.endswith(f" what it left is in {old}\n")


@pytest.mark.parametrize(("spec", "advised"), [(TRAINS, True), (SCRIPT, False)], ids=["a trainer", "a script"])
def test_another_spec_is_sent_to_another_name_and_to_the_checkpoint_there_is(torchyard, spec, advised) -> None:
    torchyard.record("cvrp", status_document(RUNNING.status))
    done = torchyard("run", job_file(torchyard, **spec, procsPerNode=2))
    assert done.returncode == 64
    assert "`spec.procsPerNode`" in done.stderr
    assert "with `--name NEW`" in done.stderr
    assert ("`--set checkpoint.resumeFrom=cvrp`" in done.stderr) is advised
