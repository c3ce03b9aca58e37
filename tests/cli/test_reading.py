"""`ps`, `status`, `logs` and `events` read what a run left, with or without a process in charge."""

import fcntl
import json
from pathlib import Path

import pytest
import yaml
from tests.cli.conftest import CommandLine, eventually
from tests.support.cli.recorded import FAILED, RUNNING, SUCCEEDED

from torchyard.api.resource import status_document


def controlled(folder: Path) -> object:
    """Hold the run's lock as its controlling process does."""
    lock = (folder / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def log(folder: Path, pod: str, rank: int, text: str) -> Path:
    path = folder / "pods" / pod / "logs" / f"rank-{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_ps_is_a_line_a_run(torchyard: CommandLine) -> None:
    lock = controlled(torchyard.record("one", status_document(RUNNING.status)))
    torchyard.record("two", status_document(RUNNING.status))
    torchyard.record("three", status_document(SUCCEEDED.status))
    lines = torchyard("ps").stdout.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "PROGRESS", "STEP", "LOSS", "RATE", "RESTARTS", "ETA", "AGE"]
    states = {line.split()[0]: line.split()[1:5] for line in lines[1:]}
    assert states["one"] == ["Running", "12%", "120/1000", "1.930"]
    assert states["two"][0] == "Interrupted"
    assert states["three"][0] == "Succeeded"
    assert "CKPT" in torchyard("ps", "-o", "wide").stdout
    del lock


def test_one_forged_status_does_not_widen_the_table(torchyard: CommandLine) -> None:
    torchyard.record("forged", {"state": "Queued", "reason": "X" * 9999, "progress": {"step": 2**63 - 1}})
    torchyard.record("renamed-" + "x" * 55, status_document(SUCCEEDED.status))
    torchyard.run_folder("renamed-" + "x" * 55).rename(torchyard.run_folder("short"))
    lines = torchyard("ps", "-o", "wide").stdout.splitlines()
    assert {line.split()[0] for line in lines[1:]} == {"forged", "short"}
    assert max(map(len, lines)) < 250


def test_ps_of_nothing_is_a_header(torchyard: CommandLine) -> None:
    done = torchyard("ps")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1


def test_machines_get_whole_objects_and_nothing_else(torchyard: CommandLine) -> None:
    torchyard.record("cvrp", status_document(RUNNING.status))
    (found,) = json.loads(torchyard("ps", "-o", "json").stdout)
    assert found == json.loads(torchyard("status", "cvrp", "-o", "json").stdout)
    assert found == yaml.safe_load(torchyard("status", "cvrp", "-o", "yaml").stdout)
    assert found["status"]["progress"]["step"] == 120
    assert found["kind"] == "TrainingJob"


@pytest.mark.parametrize("command", ["wait", "stop", "suspend"])
def test_commands_that_change_or_wait_print_the_object_for_programs(torchyard: CommandLine, command: str) -> None:
    torchyard.record("cvrp", status_document(SUCCEEDED.status))
    done = torchyard(command, "cvrp", "-o", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["metadata"]["name"], found["status"]["state"]) == (0, "cvrp", "Succeeded")


def test_status_says_what_matters_first(torchyard: CommandLine) -> None:
    lock = controlled(torchyard.record("cvrp", status_document(RUNNING.status)))
    text = torchyard("status", "cvrp").stdout
    assert text.splitlines()[0].startswith("cvrp  Running")
    assert text.splitlines()[1] == "Round 2 is training."
    for part in (
        "step 120/1000",
        "step 100",
        "20 steps at risk",
        "WorkerFailed",
        "rank 1 on cvrp-0-1 (local-1), exit 137",
        "rank 1, round",
        "step 50 loss 2.1",
        str(torchyard.run_folder("cvrp") / "checkpoints"),
        "next: torchyard logs cvrp -f",
    ):
        assert part in text, part
    assert "\x1b" not in text
    del lock


def test_a_rank_that_saved_as_it_was_asked_to_is_not_quoted_as_one_that_failed(torchyard: CommandLine) -> None:
    cause = {"rank": 0, "exitCode": 75, "class": "Preempted", "lines": ["asked to stop: step 100 is saved"]}
    attempts = [{"round": 1, "reason": "Evicted", "cause": cause}, {"round": 2}]
    torchyard.record("cvrp", {**status_document(RUNNING.status), "attempts": attempts})
    text = torchyard("status", "cvrp").stdout
    assert "Evicted" in text
    assert "asked to stop" not in text


def test_status_of_a_run_without_its_process_reports_it(torchyard: CommandLine) -> None:
    torchyard.record("cvrp", {**status_document(RUNNING.status), "reason": "Training"})
    text = torchyard("status", "cvrp").stdout
    assert "Training" not in text + torchyard("ps", "-o", "wide").stdout
    assert text.split()[:2] == ["cvrp", "Interrupted"]
    assert torchyard("ps").stdout.splitlines()[1].split()[:2] == ["cvrp", "Interrupted"]
    assert "eta" not in text, "its speed is not known now"
    assert "Its processes are gone; its newest checkpoint is safe." in text
    assert "next: torchyard resume cvrp" in text


def test_logs_of_all_ranks_begin_with_the_one_that_failed_first(torchyard: CommandLine) -> None:
    attempts = [{"round": 1, "cause": {"rank": 1}}]
    folder = torchyard.record("cvrp", {**status_document(FAILED.status), "attempts": attempts})
    log(folder, "cvrp-0-0", 0, "a\nb\n")
    log(folder, "cvrp-0-1", 1, "10%\r20%\r30%\n\x1b[31mfailed\x1b[0m\nno end")
    assert torchyard("logs", "cvrp").stdout.splitlines() == [
        "[r1 cvrp-0-1] 30%",
        "[r1 cvrp-0-1] failed",
        "[r1 cvrp-0-1] no end",
        "[r0 cvrp-0-0] a",
        "[r0 cvrp-0-0] b",
    ]
    assert torchyard("logs", "cvrp", "--rank", "0", "--tail", "1").stdout == "[r0 cvrp-0-0] b\n"
    line = json.loads(torchyard("logs", "cvrp", "--rank", "0", "--tail", "1", "-o", "json").stdout)
    assert line == {"rank": 0, "pod": "cvrp-0-0", "text": "b", "time": "", "agent": False, "round": None}
    none = torchyard("logs", "cvrp", "--rank", "7")
    assert "rank 7 is not possible: 'cvrp' has 2 ranks; ask for 0 to 1" in none.stderr
    assert (none.returncode, none.stdout) == (64, "")


def test_an_explanation_is_an_object_for_programs(torchyard: CommandLine) -> None:
    torchyard.record("cvrp", status_document(FAILED.status))
    found = json.loads(torchyard("explain", "cvrp", "-o", "json").stdout)
    assert (found["job"], found["state"], found["nextCommand"][:10]) == ("cvrp", "Failed", "torchyard ")
    assert {"title", "lines"} == found["sections"][0].keys()
    reason = json.loads(torchyard("explain", "OOMKilled", "-o", "json").stdout)
    assert reason["reason"] == "OOMKilled"
    assert "memory" in reason["nextStep"]


def test_followed_logs_continue_through_new_pods_and_end_with_the_run(torchyard: CommandLine) -> None:
    folder = torchyard.record("cvrp", status_document(RUNNING.status))
    lock = controlled(folder)
    first = log(folder, "cvrp-0-0", 0, "one\n")
    process = torchyard.start("logs", "cvrp", "-f")
    assert process.stdout is not None
    assert process.stdout.readline() == "[r0 cvrp-0-0] one\n"
    with first.open("a") as file:
        file.write("two\n")
    assert process.stdout.readline() == "[r0 cvrp-0-0] two\n"
    log(folder, "cvrp-1-0", 0, "three\n")
    assert process.stdout.readline() == "[r0 cvrp-1-0] three\n"
    assert process.poll() is None
    with first.open("a") as file:
        file.write("the end")
    document = {"metadata": {"uid": "u-1"}, "status": status_document(SUCCEEDED.status)}
    (folder / "status.json").write_text(json.dumps(document))
    assert process.stdout.readline() == "[r0 cvrp-0-0] the end\n"
    assert eventually(lambda: process.poll() == 0)
    del lock


def test_events_are_shown_oldest_first_and_a_damaged_line_is_passed_over(torchyard: CommandLine) -> None:
    folder = torchyard.record("cvrp")
    event = {"time": "2026-11-21T06:57:00Z", "type": "Warning", "reason": "WorkerFailed", "message": "exit\x1b[2J 1"}
    (folder / "events.jsonl").write_text(
        json.dumps(event) + "\n{half\n" + json.dumps({**event, "reason": "Later"}) + "\n"
    )
    lines = torchyard("events", "cvrp").stdout.splitlines()
    assert [line.split()[2] for line in lines] == ["WorkerFailed", "Later"]
    assert lines[0].endswith("exit 1")
    assert [json.loads(line)["reason"] for line in torchyard("events", "cvrp", "-o", "json").stdout.splitlines()] == [
        "WorkerFailed",
        "Later",
    ]
