"""Output of rounds that failed is kept beside the checkpoints, bounded, of the pods in which a failure began."""

import threading

from torchyard_agent.telemetry.logs import RankLog
from torchyard_agent.workers import failed_rounds
from torchyard_agent.workers.background import MOST_PENDING, Background
from torchyard_agent.workers.failed_rounds import Evidence


def ended(number, **failure):
    cause = {"rank": 1, "secondary": False, **failure} if failure or number else None
    return {"round": number, "code": 1, "saved": False, "failure": cause}


def kept(folder):
    return sorted(path.name for path in (folder / "failures").iterdir())


def test_the_end_of_the_output_and_the_newest_files_are_kept(tmp_path):
    logs, run, saved = tmp_path / "logs", tmp_path / "run", tmp_path / "saved"
    logs.mkdir()
    run.mkdir()
    (logs / "rank-1.log").write_text("x" * failed_rounds.LOG_BYTES + "\nRuntimeError: lost\n")
    (run / "stacks.7.txt").write_text("stacks")
    (run / "progress.token").write_text("secret")
    (run / "report.9.json").symlink_to("/etc/passwd")
    Evidence("job-0-0", ended(3), [RankLog(logs, 0), RankLog(logs, 1)], run).write(saved)
    assert kept(saved) == ["files-00000003-job-0-0", "round-00000003"]
    assert (saved / "failures/round-00000003/rank-1.log").read_text() == "RuntimeError: lost\n"
    copied = [path.name for path in (saved / "failures/files-00000003-job-0-0").rglob("*") if path.is_file()]
    assert copied == ["stacks.7.txt"]


def test_evidence_is_that_of_its_round_however_late_it_is_written(tmp_path):
    run, saved = tmp_path / "run", tmp_path / "saved"
    run.mkdir()
    log, report, stacks = run / "rank-1.log", run / "report.0.json", run / "stacks.7.txt"
    log.write_text("RuntimeError: lost\n")
    report.write_text('{"step": 7}')
    stacks.write_text("stacks")
    evidence = Evidence("pod", ended(1), [RankLog(run, 1)], run)
    with log.open("a") as file:
        file.write("step 8 of the next round\n")
    stacks.unlink()
    other = run / "other"
    other.write_text('{"step": 8}')
    other.replace(report)
    evidence.write(saved)
    files = saved / "failures/files-00000001-pod/run"
    assert (saved / "failures/round-00000001/rank-1.log").read_text() == "RuntimeError: lost\n"
    assert ((files / "report.0.json").read_text(), (files / "stacks.7.txt").read_text()) == ('{"step": 7}', "stacks")
    assert sorted(path.name for path in run.iterdir()) == ["rank-1.log", "report.0.json"]


def test_a_disk_that_hangs_holds_neither_the_loop_nor_the_end_and_what_piles_up_is_left_out():
    disk, hangs, done = Background("test"), threading.Event(), []
    assert disk.finish(0.0)
    begun = threading.Event()
    assert disk.begin(lambda: (begun.set(), hangs.wait()))
    assert begun.wait(10)
    assert [disk.begin(lambda n=n: done.append(n)) for n in range(MOST_PENDING + 1)] == [True] * MOST_PENDING + [False]
    assert not disk.finish(0.01)
    hangs.set()
    assert disk.finish(10.0)
    assert done == list(range(MOST_PENDING))


def test_only_the_newest_rounds_stay_and_files_of_the_newest_one(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "report.0.json").write_text("{}")
    for number in range(1, 8):
        Evidence("pod", ended(number), [], run).write(tmp_path)
    rounds = [f"round-{number:08d}" for number in range(3, 8)]
    assert kept(tmp_path) == ["files-00000007-pod", *rounds]
    failed_rounds.prune(tmp_path, keep_files_seconds=-1.0)
    assert kept(tmp_path) == rounds


def test_consequences_of_another_failure_are_not_kept():
    assert failed_rounds.began_here(ended(1), terminated=False)
    assert not failed_rounds.began_here(ended(1, secondary=True), terminated=False)
    assert not failed_rounds.began_here({**ended(1), "failure": None}, terminated=False)
    assert failed_rounds.began_here({**ended(1), "failure": None}, terminated=True)
