"""What the cache holds is whole, and found again exactly while its inputs are the same."""

import pytest
from cache import built, digest


def test_what_was_built_is_not_built_again(tmp_path):
    built(tmp_path / "tool", lambda folder: (folder / "program").write_text("first"))
    again = built(tmp_path / "tool", lambda folder: (folder / "program").write_text("second"))

    assert (again / "program").read_text() == "first"


def test_a_build_that_failed_half_way_leaves_nothing(tmp_path):
    def breaks(folder):
        (folder / "program").write_text("half")
        raise RuntimeError("no space left")

    with pytest.raises(RuntimeError, match="no space left"):
        built(tmp_path / "tool", breaks)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "go.sum").write_text("other"),
        lambda folder: (folder / "go.sum").rename(folder / "go.mod"),
        lambda folder: (folder / "main.go").write_text("package main"),
    ],
)
def test_a_digest_stands_for_names_and_contents(tmp_path, change):
    (tmp_path / "go.sum").write_text("module")
    before = digest(tmp_path, "-s -w")
    assert digest(tmp_path, "-s -w") == before

    change(tmp_path)
    assert digest(tmp_path, "-s -w") != before


def test_texts_are_distinguished_where_they_meet():
    assert digest("ab", "c") != digest("a", "bc")
