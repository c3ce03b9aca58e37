"""Runs as files: what `run` of a name that is taken does, who controls, what other terminals may change."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import yaml
from tests.support.waiting import DEADLINE

from torchyard.api.resource import read_job
from torchyard.api.status import State, TrainingJobStatus
from torchyard.api.values import Time, rfc3339
from torchyard.local import run
from torchyard.local.record import POD_MARK, PodRecord, loopback_address, write
from torchyard.local.run import RunFolder, is_controlled, run_folder, take_lock
from torchyard.local.runs import (
    KEPT_ASIDE,
    SOURCE_FOLDER,
    RunBusyError,
    RunExistsError,
    control,
    create_run,
    expire_runs,
    list_runs,
    log_files,
    suspend_run,
)


def job(**spec):
    return read_job({"metadata": {"name": "demo"}, "spec": {"script": "print('hello: \u00e4')\n"} | spec})


def finish(folder, state=State.SUCCEEDED, completed=None):
    made = run.read_run(folder)
    status = TrainingJobStatus(state=state, completion_time=Time.parse(completed) if completed else None)
    run.write_status_file(folder, msgspec.structs.replace(made, status=status))


def test_a_run_is_a_job_file_that_survives_a_round_trip(folder, tmp_path):
    made = create_run(folder, job(nodes=2, env=[{"name": "A", "value": "1: [x"}]), tmp_path)
    assert made.metadata.uid
    assert made.metadata.generation == 1
    assert made.metadata.annotations[SOURCE_FOLDER] == str(tmp_path)
    assert run.read_run(folder) == made
    assert [each.name for each in list_runs()] == ["demo"]
    assert run_folder("demo") == folder
    document = run.decode_object(folder.job_file.read_bytes())
    folder.job_file.write_text(yaml.safe_dump(document))  # as earlier versions did
    assert run.read_run(folder) == made


def test_no_other_user_reads_the_files_of_a_run(tmp_path):
    folder = RunFolder(tmp_path / "new" / "runs" / "demo")
    create_run(folder, job(env=[{"name": "TOKEN", "value": "secret"}]), tmp_path)
    assert {path.stat().st_mode & 0o777 for path in (folder.home, folder.path.parent, folder.path)} == {0o700}
    assert folder.job_file.stat().st_mode & 0o777 == 0o600


def test_there_may_be_no_runs_at_all(home):
    assert list_runs() == []
    assert run.read_run(run_folder("demo")) is None


def test_only_a_finished_run_whose_ttl_has_passed_is_deleted(folder, home, tmp_path):
    for name, ttl, completed in (
        ("kept", None, "2020-01-01T00:00:00Z"),
        ("young", "1h", rfc3339(time.time())),
        ("unfinished", "1s", None),
        ("over", "1h", "2020-01-01T00:00:00Z"),
    ):
        one = run_folder(name)
        create_run(one, job(ttlAfterFinished=ttl), tmp_path)
        finish(one, "Succeeded" if completed else "Running", completed)
    assert expire_runs() == ["over"]
    assert [each.name for each in list_runs()] == ["kept", "unfinished", "young"]


def test_a_run_that_is_in_use_outlives_its_time(folder, tmp_path):
    create_run(folder, job(ttlAfterFinished="1h"), tmp_path)
    finish(folder, completed="2020-01-01T00:00:00Z")
    lock = take_lock(folder.lock_file)
    assert expire_runs() == []
    os.close(lock)
    assert expire_runs() == ["demo"]


def test_the_same_spec_continues_a_suspended_run(folder, tmp_path):
    made = create_run(folder, job(), tmp_path)
    suspend_run(folder, suspend=True)
    finish(folder, "Suspended")
    again = create_run(folder, job(), tmp_path)
    assert again.metadata.uid == made.metadata.uid
    assert again.spec.suspend is False
    assert again.metadata.generation == 3, "every change of the spec is a generation"


def test_another_spec_under_the_name_of_an_unfinished_run_is_rejected_with_the_differences(folder, tmp_path):
    create_run(folder, job(), tmp_path)
    with pytest.raises(RunExistsError, match=r"spec\.nodes.*--name.*torchyard rm demo") as error:
        create_run(folder, job(nodes=2), tmp_path)
    assert error.value.fields == ["nodes"]


def test_a_finished_run_starts_over_and_the_old_one_is_kept_aside(folder, home, tmp_path):
    first = create_run(folder, job(), tmp_path)
    folder.checkpoints.mkdir()
    (folder.checkpoints / "DONE").touch()
    finish(folder, completed="2026-11-25T12:34:56Z")
    second = create_run(folder, job(nodes=3), tmp_path)
    assert second.metadata.uid != first.metadata.uid
    assert second.status.state == ""
    assert not folder.checkpoints.exists()
    assert (home / "old" / "demo" / "2026-11-25T12-34-56Z" / "checkpoints" / "DONE").exists()
    finish(folder, "Failed", completed="2026-11-25T12:34:56Z")
    create_run(folder, job(), tmp_path)
    kept = sorted(path.name for path in (home / "old" / "demo").iterdir())
    assert kept == ["2026-11-25T12-34-56Z", "2026-11-25T12-34-56Z.2"], "no run takes the place of another"


def test_of_many_finished_runs_of_a_name_the_newest_are_kept_and_the_others_named(folder, home, tmp_path):
    said = []
    for minute in range(KEPT_ASIDE + 2):
        create_run(folder, job(), tmp_path, lambda _before, aside: said.append(aside))
        finish(folder, completed=f"2026-11-25T12:{minute:02}:00Z")
    create_run(folder, job(), tmp_path, lambda _before, aside: said.append(aside))
    shelf = home / "old" / "demo"
    kept = sorted(path.name for path in shelf.iterdir())
    assert kept == [f"2026-11-25T12-{minute:02}-00Z" for minute in range(2, KEPT_ASIDE + 2)]
    assert said[-1].folder.path == shelf / kept[-1]
    deleted = [aside.deleted for aside in said]
    assert deleted == [()] * KEPT_ASIDE + [(shelf / f"2026-11-25T12-0{minute}-00Z",) for minute in (0, 1)]


def test_a_run_that_an_older_version_kept_is_kept(folder, home, tmp_path):
    """It was the folder of the name itself, and there was one."""
    create_run(folder, job(), tmp_path)
    (home / "old").mkdir()
    shutil.copytree(folder.path, home / "old" / "demo")
    os.utime(home / "old" / "demo", (1e9, 1e9))
    finish(folder, completed="2026-11-25T12:34:56Z")
    create_run(folder, job(), tmp_path)
    kept = sorted(path.name for path in (home / "old" / "demo").iterdir())
    assert kept == ["2001-09-09T01-46-40Z", "2026-11-25T12-34-56Z"]


def test_a_run_that_is_stopping_is_not_gone_on_with(folder, tmp_path):
    create_run(folder, job(), tmp_path)
    with control(folder):
        suspend_run(folder, suspend=True)
        with pytest.raises(RunBusyError):
            create_run(folder, job(), tmp_path)
        assert run.read_run(folder).spec.suspend, "the stop stands"


@pytest.mark.parametrize("end", [expire_runs, lambda: create_run(run_folder("demo"), job(), Path.cwd())])
def test_processes_of_a_finished_run_end_before_its_folder_is_moved(folder, tmp_path, end):
    made = create_run(folder, job(ttlAfterFinished="1h"), tmp_path)
    pod = PodRecord(
        uid="left-behind", job_uid=made.metadata.uid, name="demo-0-0", index=0, incarnation=0, address="127.0.0.1",
        created=1.0, url="http://127.0.0.1:1",
    )  # fmt: skip
    (folder.pods / pod.name).mkdir(parents=True)
    write(folder.pods / pod.name / "pod.json", pod)
    env = {**os.environ, POD_MARK: pod.uid, "TORCHYARD_CHECKPOINT_DIR": str(folder.checkpoints)}
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env, start_new_session=True)
    finish(folder, completed="2020-01-01T00:00:00Z")
    end()
    assert left.wait(DEADLINE) == -signal.SIGKILL


def test_a_run_that_is_being_removed_is_not_gone_on_with(folder, tmp_path):
    made = create_run(folder, job(), tmp_path)
    folder.checkpoints.mkdir()
    metadata = msgspec.structs.replace(made.metadata, deletion_timestamp=Time.parse("2026-11-21T06:30:00Z"))
    run.write_job(folder, msgspec.structs.replace(made, metadata=metadata))
    again = create_run(folder, job(), tmp_path)
    assert again.metadata.uid != made.metadata.uid
    assert again.metadata.deletion_timestamp is None
    assert not folder.checkpoints.exists()


def test_one_process_controls_a_run(folder, tmp_path):
    create_run(folder, job(), tmp_path)
    assert is_controlled(folder) is None
    with control(folder):
        assert is_controlled(folder) == os.getpid()
        with pytest.raises(RunBusyError, match=f"process {os.getpid()}.*torchyard stop demo") as error, control(folder):
            pass
        assert error.value.pid == os.getpid()
    assert is_controlled(folder) is None


def test_a_process_that_just_took_control_is_nameless_for_a_moment(folder, tmp_path):
    create_run(folder, job(), tmp_path)
    lock = take_lock(folder.lock_file)
    assert is_controlled(folder) == 0
    os.close(lock)


def test_a_status_of_another_job_is_not_mistaken_for_this_ones(folder, tmp_path):
    create_run(folder, job(), tmp_path)
    finish(folder, "Suspended")
    stale = folder.status_file.read_bytes()
    folder.job_file.unlink()
    create_run(folder, job(), tmp_path)
    folder.status_file.write_bytes(stale)
    assert run.read_run(folder).status.state == ""


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"metadata": 5}', b"\xff"])
def test_a_damaged_status_costs_the_status_not_the_run(folder, tmp_path, damage):
    create_run(folder, job(), tmp_path)
    folder.status_file.write_bytes(damage)
    assert run.read_run(folder).status == TrainingJobStatus()


@pytest.mark.parametrize(
    "damage",
    [
        "- a\n",
        "spec: [\n",
        "metadata: {name: x}\nspec: {nodes: many}\n",
        "x" * (5 << 20),
        "[" * 100_000,
        f"spec: {'[' * 100_000}",  # YAML alone: libyaml would end this process
        f"spec: &spec {{nodes: 1, args: [{'*spec, ' * 9}]}}",
        '{"metadata": {"name": "x"}, "spec": {"nodes": NaN}}',
        '{"metadata": {"name": "x", "labels": {"a": "\\ud83d"}}, "spec": {}}',
        f'{{"metadata": {{"name": "x", "generation": {2**63}}}, "spec": {{}}}}',
    ],
    ids=["list", "syntax", "type", "large", "deep", "deep-yaml", "aliases", "nan", "surrogate", "integer"],
)
def test_a_damaged_job_file_is_named(folder, tmp_path, damage):
    create_run(folder, job(), tmp_path)
    folder.job_file.write_text(damage)
    with pytest.raises(ValueError, match=r"job\.yaml: ") as raised:
        run.read_run(folder)
    assert "\n" not in str(raised.value), "it is one sentence"


def test_a_run_has_the_name_of_its_folder(folder, tmp_path):
    create_run(folder, job(), tmp_path)
    renamed = run.RunFolder(folder.path.rename(folder.path.with_name("renamed")))
    assert run.read_run(renamed).metadata.name == "renamed"


def test_events_are_kept_in_order_and_bounded(folder, tmp_path, monkeypatch):
    create_run(folder, job(), tmp_path)
    monkeypatch.setattr(run, "MAX_EVENTS_BYTES", 2000)
    for number in range(100):
        run.append_events(folder, [run.Event("2025-11-21T06:20:00Z", "Normal", "RoundOpened", f"round {number}")])
    with folder.events_file.open("ab") as file:
        file.write(b'{"time": "cut sh')
    kept = run.events(folder)
    assert folder.events_file.stat().st_size < 2100
    assert kept[-1] == run.Event("2025-11-21T06:20:00Z", "Normal", "RoundOpened", "round 99")
    numbers = [int(event.message.split()[1]) for event in kept]
    assert numbers == list(range(numbers[0], 100))


def test_logs_are_found_by_pod_and_rank(folder, tmp_path):
    create_run(folder, job(), tmp_path)
    for name in ("rank-10.log", "rank-2.log", "agent.log", "pod.log", "rank-2.log.1"):
        path = folder.pods / "demo-0-0" / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [(log.pod, log.rank) for log in log_files(folder)] == [("demo-0-0", None), ("demo-0-0", 2), ("demo-0-0", 10)]


def test_every_pod_of_every_job_has_a_loopback_address_of_its_own():
    addresses = {loopback_address(uid, index) for uid in ("a1b2c3d4", "00ff00ff") for index in range(4096)}
    assert len(addresses) == 2 * 4096
    assert all(address.startswith("127.") and max(map(int, address.split("."))) <= 255 for address in addresses)
    assert not any(address.startswith("127.0.") for address in addresses)


def test_names_of_folders_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "elsewhere"))
    assert run_folder("x") == RunFolder(tmp_path / "elsewhere" / "runs" / "x")
    monkeypatch.delenv("TORCHYARD_HOME")
    assert run_folder("x").home == Path.home() / ".torchyard"
