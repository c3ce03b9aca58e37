"""The digest by which members of a gang see that they would not run the same thing."""

import pytest

from torchyard_agent.control.content import Content


@pytest.fixture
def mounted(tmp_path):
    """A config map as a kubelet mounts it: the files are links into a folder that is exchanged as a whole."""
    folder = tmp_path / "settings"
    (folder / "..2026").mkdir(parents=True)
    (folder / "..2026" / "lr").write_text("0.1")
    (folder / "..data").symlink_to("..2026")
    (folder / "lr").symlink_to("..data/lr")
    return folder


def edit(folder, text):
    (folder / "..2027").mkdir()
    (folder / "..2027" / "lr").write_text(text)
    (folder / "..data").unlink()
    (folder / "..data").symlink_to("..2027")


def digest(folders=(), variables=(), env=None, seed="uid"):
    return Content(seed, folders, variables, env or {}).latest(idle=True)


def test_pods_with_the_same_files_have_the_same_digest_whatever_the_names_of_the_kubelets_folders(mounted):
    before = digest([mounted])
    edit(mounted, "0.1")
    assert digest([mounted]) == before
    assert len(before) == 32


def test_an_edit_a_new_key_and_another_job_change_it(mounted):
    found = [digest([mounted]), digest([mounted], seed="other")]
    edit(mounted, "0.2")
    found.append(digest([mounted]))
    (mounted / "seed").write_text("7")
    found.append(digest([mounted]))
    assert len(set(found)) == 4


def test_a_variable_counts_with_the_value_that_this_container_got(mounted):
    """The mounted file may be newer than the variable, which is set once."""
    first, second = (digest((), [mounted], {"lr": value, "HOSTNAME": value}) for value in ("0.1", "0.2"))
    assert first != second
    edit(mounted, "0.2")
    assert digest((), [mounted], {"lr": "0.1"}) == first


def test_content_is_not_read_again_while_a_round_runs(mounted, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("torchyard_agent.control.content.time.monotonic", lambda: now[0])
    content = Content("uid", [mounted], [], {})
    before = content.latest(idle=True)
    edit(mounted, "0.2")
    now[0] += 60
    assert content.latest(idle=False) == before
    assert content.latest(idle=True) != before


def test_a_pod_that_reads_nothing_of_the_kind_has_none(tmp_path):
    assert digest() == ""
    assert digest([tmp_path / "missing"])
