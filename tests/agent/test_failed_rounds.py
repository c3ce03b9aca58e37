"""Output of rounds that failed is kept beside the checkpoints, bounded, of the pods in which a failure began."""

from torchyard_agent.telemetry.logs import RankLog
from torchyard_agent.workers import failed_rounds


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
    failed_rounds.keep(saved, "job-0-0", ended(3), [RankLog(logs, 0), RankLog(logs, 1)], [run])
    assert kept(saved) == ["files-00000003-job-0-0", "round-00000003"]
    assert (saved / "failures/round-00000003/rank-1.log").read_text() == "RuntimeError: lost\n"
    copied = [path.name for path in (saved / "failures/files-00000003-job-0-0").rglob("*") if path.is_file()]
    assert copied == ["stacks.7.txt"]


def test_only_the_newest_rounds_stay_and_files_of_the_newest_one(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "report.0.json").write_text("{}")
    for number in range(1, 8):
        failed_rounds.keep(tmp_path, "pod", ended(number), [], [run])
    rounds = [f"round-{number:08d}" for number in range(3, 8)]
    assert kept(tmp_path) == ["files-00000007-pod", *rounds]
    failed_rounds.prune(tmp_path, keep_files_seconds=-1.0)
    assert kept(tmp_path) == rounds


def test_consequences_of_another_failure_are_not_kept():
    assert failed_rounds.began_here(ended(1), terminated=False)
    assert not failed_rounds.began_here(ended(1, secondary=True), terminated=False)
    assert not failed_rounds.began_here({**ended(1), "failure": None}, terminated=False)
    assert failed_rounds.began_here({**ended(1), "failure": None}, terminated=True)
