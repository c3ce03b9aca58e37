"""A job with the name of a former one on the same claim starts over, and nothing that the former one left is lost."""

import json

import pytest

from torchyard_agent.control.ownership import OWNER_FILE, take


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "claim" / "cvrp"


def train(folder, text):
    (folder / "step-00000300").mkdir()
    (folder / "step-00000300" / "weights").write_text(text)
    (folder / "DONE").write_text(text)


def test_a_new_folder_belongs_to_its_job_for_all_of_its_pods(folder):
    assert take(folder, "first", go_on=False) is None
    train(folder, "first")
    assert take(folder, "first", go_on=False) is None
    assert json.loads((folder / OWNER_FILE).read_text()) == {"uid": "first"}
    assert (folder / "DONE").read_text() == "first"


def test_a_job_of_the_same_name_starts_over_and_the_former_folders_are_kept_aside(folder):
    for number, uid in enumerate(("first", "second", "third")):
        said = take(folder, uid, go_on=False)
        assert [path.name for path in folder.iterdir()] == [OWNER_FILE]
        train(folder, uid)
        if number:
            old = folder.with_name(f"cvrp-old-{number}")
            assert f"moved to {old}, and this job starts over; a built-in trainer continues" in said
            assert (old / "step-00000300" / "weights").read_text() == ("first", "second")[number - 1]


def test_a_job_may_continue_in_the_folder_of_a_former_one_with_a_notice(folder):
    take(folder, "first", go_on=True)
    train(folder, "first")
    assert "continues from the files in" in take(folder, "second", go_on=True)
    assert (folder / "DONE").read_text() == "first"
    assert take(folder, "second", go_on=True) is None


def test_files_that_no_agent_has_looked_at_are_gone_on_from_and_named(folder):
    """Leave files without an owner: a user put them there, or an agent of an older version recorded none."""
    folder.mkdir(parents=True)
    (folder / "weights").write_text("mine")
    assert "continues from the files in" in take(folder, "first", go_on=False)
    assert (folder / "weights").exists()


def test_an_empty_folder_of_a_former_job_is_used_without_a_notice(folder):
    take(folder, "first", go_on=False)
    assert take(folder, "second", go_on=False) is None
    assert not folder.with_name("cvrp-old-1").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"uid"'])
def test_an_owner_that_cannot_be_read_is_another_one(folder, text):
    folder.mkdir(parents=True)
    (folder / OWNER_FILE).write_text(text)
    (folder / "weights").write_text("x")
    take(folder, "second", go_on=False)
    assert (folder.with_name("cvrp-old-1") / "weights").read_text() == "x"
