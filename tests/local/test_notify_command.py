"""`--notify COMMAND`: each transition starts the program, with the event on its stdin and without a shell."""

import json
import sys

from msgspec.structs import replace
from tests.kubernetes.test_job_metrics import TRAINING, job

from torchyard.api.status import State
from torchyard.api.values import Time
from torchyard.cli.main import main
from torchyard.local import notify_command
from torchyard.local.notify_command import NotifyCommand

FAILED = replace(TRAINING, state=State.FAILED, completion_time=Time.of(5))


def program(tmp_path, text):
    path = tmp_path / "notify.py"
    path.write_text(text)
    return [sys.executable, str(path)]


async def test_each_transition_starts_it_with_the_event_on_stdin_and_its_words_as_they_are(tmp_path):
    words = program(tmp_path, "import sys\nopen(sys.argv[1], 'a').write(sys.stdin.read() + sys.argv[2] + chr(10))\n")
    log = tmp_path / "log"
    async with NotifyCommand([*words, str(log), "$HOME; rm -rf *"]) as command:
        command.written(job("a", replace(TRAINING, state=State.PENDING)), TRAINING)
        command.written(job("a"), FAILED)
    first, said, second, _ = log.read_text().splitlines()
    assert [json.loads(line)["data"]["state"] for line in (first, second)] == ["Running", "Failed"]
    assert (said, command.problem) == ("$HOME; rm -rf *", "")


async def test_a_program_that_fails_or_hangs_is_named_and_ended(tmp_path, monkeypatch):
    async with NotifyCommand(program(tmp_path, "import sys; sys.exit('no network')")) as command:
        command.written(job("a"), FAILED)
    assert command.problem == f"--notify {sys.executable}: exit code 1: no network"
    monkeypatch.setattr(notify_command, "COMMAND_SECONDS", 0.2)
    async with NotifyCommand(program(tmp_path, "import time; time.sleep(3600)")) as command:
        command.written(job("a"), FAILED)
    assert "did not end" in command.problem


def test_a_program_that_does_not_exist_is_refused_before_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    assert main(["run", "--notify", "no-such-program --now", "--", "true"]) == 64
    assert "no-such-program" in capsys.readouterr().err
