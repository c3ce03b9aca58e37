"""Bytecode of installed packages is that of their sources in another clone, too."""

import importlib.util
import os
import py_compile
from importlib.machinery import SourceFileLoader

import pytest
from hack import bytecode

LATER = 2**31


@pytest.fixture
def clones(tmp_path):
    """Two folders with a package whose sources have different times; it has been imported in the first one."""
    for name, time in (("first", 1_000_000), ("second", 2_000_000)):
        package = tmp_path / name / "package"
        package.mkdir(parents=True)
        (package / "module.py").write_text("ANSWER = 42\n")
        os.utime(package / "module.py", (time, time))
    py_compile.compile(str(tmp_path / "first" / "package" / "module.py"))
    return tmp_path / "first", tmp_path / "second", tmp_path / "kept"


class NeverCompiling(SourceFileLoader):
    """Loads bytecode only."""

    def source_to_code(self, data, path, **_):
        raise AssertionError(f"{path} is compiled")


def imported(folder):
    """Import the package's module, without compiling it."""
    file = folder / "package" / "module.py"
    loader = NeverCompiling("module", str(file))
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("module", file, loader=loader))
    loader.exec_module(module)
    return module


def test_a_module_that_was_imported_in_one_clone_is_not_compiled_in_another(clones):
    first, second, kept = clones
    with pytest.raises(AssertionError, match="is compiled"):
        imported(second)
    bytecode.keep(first, kept, installed=LATER)
    bytecode.take(second, kept)
    module = imported(second)
    assert module.ANSWER == 42
    assert module.__file__ == str(second / "package" / "module.py")
    assert [file.name for file in kept.rglob("*.pyc*")] == [f"module{bytecode.SUFFIX}"]


def test_what_was_edited_since_the_installation_is_not_kept(clones):
    first, _, kept = clones
    bytecode.keep(first, kept, installed=999_999)
    assert not kept.exists()


def test_bytecode_of_another_source_is_neither_kept_nor_taken(clones):
    first, second, kept = clones
    bytecode.keep(first, kept, installed=LATER)
    (second / "package" / "module.py").write_text("ANSWER = 42  # as everyone knows\n")
    bytecode.take(second, kept)
    with pytest.raises(AssertionError, match="is compiled"):
        imported(second)
    (first / "package" / "module.py").write_text("ANSWER = 6 * 7\n")
    bytecode.keep(first, kept.with_name("again"), installed=LATER)
    assert not kept.with_name("again").exists()


def test_a_cache_that_cannot_be_written_fails_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(bytecode, "KEPT", tmp_path / "file" / "bytecode")
    assert bytecode.main(["keep"]) == bytecode.main(["take"]) == 0
    assert "is not shared between clones" in capsys.readouterr().err
