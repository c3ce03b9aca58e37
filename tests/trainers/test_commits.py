"""The commit protocol: what is not whole does not exist, and the newest round owns the folder."""

import json

import pytest

from torchyard_trainers.core.checkpoints import commits
from torchyard_trainers.core.exits import SupersededError


def write_step(root, step, *, commit=True, score=None):
    folder = commits.step_folder(root, step)
    (folder / "dcp").mkdir(parents=True)
    (folder / "dcp" / "__0_0.bin").write_bytes(bytes(100 + step))
    (folder / "state.json").write_text(json.dumps({"step": step, "score": score}))
    files = {name: commits.digest(folder / name) for name in ("dcp/__0_0.bin", "state.json")}
    if commit:
        commits.commit(folder, files, {"step": step})
    return folder


def valid(root):
    return [candidate.step for candidate in commits.candidates(root) if not candidate.fault]


def test_folders_are_found_newest_first_and_strangers_left_alone(tmp_path):
    for step in (10, 9, 100_000_000):
        write_step(tmp_path, step)
    (tmp_path / "step-x").mkdir()
    (tmp_path / "final").mkdir()
    assert valid(tmp_path) == [100_000_000, 10, 9]


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda folder: (folder / "COMMIT").unlink(), "no COMMIT"),
        (lambda folder: (folder / "COMMIT").write_text('{"files": '), "COMMIT is unreadable"),
        (lambda folder: (folder / "COMMIT").write_text("[]"), "COMMIT is unreadable"),
        (lambda folder: (folder / "state.json").unlink(), "state.json is missing"),
        (lambda folder: (folder / "dcp" / "__0_0.bin").write_bytes(b"half"), "has 4 bytes instead of"),
    ],
)
def test_a_half_written_checkpoint_does_not_exist(tmp_path, damage, fault):
    write_step(tmp_path, 1)
    damage(write_step(tmp_path, 2))
    newest, older = commits.candidates(tmp_path)
    assert fault in newest.fault
    assert older.fault == ""


def test_a_flipped_bit_is_found_by_its_digest_whichever_rank_reads_the_file(tmp_path):
    folder = write_step(tmp_path, 1)
    shard = folder / "dcp" / "__0_0.bin"
    shard.write_bytes(b"\x01" + shard.read_bytes()[1:])
    assert valid(tmp_path) == [1]
    for parts in (1, 2, 3):
        found = [name for part in range(parts) for name in commits.damaged(folder, part, parts)]
        assert found == ["dcp/__0_0.bin"]


def test_retention_keeps_the_newest_valid_ones_and_never_counts_a_broken_one(tmp_path):
    for step in range(1, 6):
        write_step(tmp_path, step)
    write_step(tmp_path, 6, commit=False)
    assert commits.retire(tmp_path, 2, saved=5) == [3, 2, 1]
    assert valid(tmp_path) == [5, 4]
    (commits.step_folder(tmp_path, 5) / "state.json").unlink()
    assert commits.retire(tmp_path, 1, saved=4) == []
    assert valid(tmp_path) == [4]
    assert commits.retire(tmp_path, 0, saved=4) == []


def test_retention_never_takes_the_checkpoint_just_saved(tmp_path):
    for step in (800, 850, 900):
        write_step(tmp_path, step)
    assert commits.retire(tmp_path, 1, saved=850) == [800]
    assert valid(tmp_path) == [900, 850]


def test_retention_keeps_the_best_by_score_beside_the_newest(tmp_path):
    for step, score in ((1, 5.2), (2, 4.9), (3, None), (4, 5.0), (5, 4.9), (6, 5.3)):
        write_step(tmp_path, step, score=score)
    assert commits.retire(tmp_path, 1, saved=6, best=2) == [4, 3, 1]
    assert valid(tmp_path) == [6, 5, 2]
    write_step(tmp_path, 7, score=4.0)
    assert commits.retire(tmp_path, 1, saved=7, best=2) == [6, 2]
    assert valid(tmp_path) == [7, 5]


def test_a_checkpoint_with_a_score_of_nan_replaces_no_other(tmp_path):
    for step, score in ((1, 4.9), (2, float("nan")), (3, 5.2)):
        write_step(tmp_path, step, score=score)
    assert commits.retire(tmp_path, 1, saved=3, best=1) == [2]
    assert valid(tmp_path) == [3, 1]


@pytest.mark.parametrize("text", ["", "[]", '{"score": "low"}', '{"score": null}', '{"score": NaN}'])
def test_a_checkpoint_without_a_readable_score_is_none_of_the_best(tmp_path, text):
    folder = write_step(tmp_path, 1)
    (folder / "state.json").write_text(text)
    assert commits.read_score(folder) is None


def test_an_interrupted_deletion_leaves_no_checkpoint_that_looks_complete(tmp_path, monkeypatch):
    folder = write_step(tmp_path, 1)
    monkeypatch.setattr(commits.shutil, "rmtree", lambda *_args, **_more: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        commits.remove(folder)
    assert valid(tmp_path) == []


def test_a_newer_round_takes_the_folder_and_an_older_one_may_not_write(tmp_path):
    assert commits.claim_round(tmp_path, 3, "job") == 3
    commits.check_round(tmp_path, 3, "job")
    assert commits.claim_round(tmp_path, 4, "job") == 4
    with pytest.raises(SupersededError, match="round 4 took over"):
        commits.check_round(tmp_path, 3, "job")
    with pytest.raises(SupersededError, match="this is round 3"):
        commits.claim_round(tmp_path, 3, "job")


def test_another_job_starts_its_own_count_and_fences_the_first(tmp_path):
    commits.claim_round(tmp_path, 9, "first")
    assert commits.claim_round(tmp_path, 1, "second") == 1
    with pytest.raises(SupersededError):
        commits.check_round(tmp_path, 9, "first")


def test_without_an_operator_every_start_is_the_next_round(tmp_path):
    assert [commits.claim_round(tmp_path, None, "") for _ in range(3)] == [1, 2, 3]


def test_an_atomic_write_leaves_the_old_file_when_it_fails(tmp_path):
    commits.write_atomically(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        commits.write_atomically(tmp_path / "file", "\ud800")
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
