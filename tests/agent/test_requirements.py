"""What an image lacks of a lock is installed once, from wheels by their digests, and never a second torch or numpy."""

import hashlib
import os
import zipfile

import pytest

from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.inputs.cache import KEPT_SECONDS
from torchyard_agent.requirements import install, tools
from torchyard_agent.requirements.lock import LockError, is_kept, plan, read
from torchyard_agent.requirements.overlay import Overlay

DIGEST = "--hash=sha256:" + "0" * 64


def wheel(folder, name, requires=()):
    """Write a wheel with one module; return its line of a lock."""
    folder.mkdir(exist_ok=True)
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name}.py": "answer = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{each},,\n" for each in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(each, text)
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def prepare(tmp_path):
    """Install a lock from the folder of wheels; return the folder of packages and what was reported."""

    def prepare(text, sleep=lambda _seconds: None):
        reports = []
        place = install.Location(tmp_path / "root", tmp_path / "wheels", tmp_path)
        return install.prepare(read(text), place, reports.append, sleep), reports

    return prepare


def test_only_what_the_image_lacks_or_has_in_another_version_is_installed():
    names = ("new==1", "older==2", "same==3", "torch==2.14", "triton==3", "nvidia-nccl-cu13==2", "numpy==2.5")
    lock = read("\n".join(f"{name} {DIGEST}" for name in names))
    found = plan(lock, {"older": "1", "same": "3", "torch": "2.15+cu130", "numpy": "2.4"})
    assert [pin.name for pin in found.install] == ["new", "older"]
    assert found.kept == {"torch": "2.15+cu130", "triton": "", "nvidia-nccl-cu13": "", "numpy": "2.4"}
    assert [pin.name for pin in plan(lock, {}).install] == [pin.name for pin in lock.pins], "an image without torch"
    assert plan(read(f"torch==2.15 {DIGEST}"), {"torch": "2.15+cpu"}).kept == {}
    assert not is_kept("numpydoc")


@pytest.mark.parametrize(
    "line",
    [
        "a==1",
        "-e .",
        f"a @ git+https://host/a {DIGEST}",
        f"a @ file:///a.whl {DIGEST}",
        f"--extra-index-url https://me:secret@host/simple {DIGEST}",
        f"a==1 --hash=md5:{'0' * 32}",
        f"a==1 --config-settings=x {DIGEST}",
    ],
)
def test_a_lock_holds_nothing_but_wheels_with_digests(line):
    with pytest.raises(LockError):
        read(line)


def test_packages_are_installed_once_and_again_only_if_they_were_damaged(prepare, tmp_path):
    lock = wheel(tmp_path / "wheels", "ty_wanted")
    folder, reports = prepare(lock)
    assert (folder / "ty_wanted.py").read_text() == "answer = 42\n"
    assert reports == [{"packages": 1, "state": "installing"}]
    (folder / "__pycache__" / "by_somebody.pyc").write_bytes(b"")
    assert prepare(lock) == (folder, []), "bytecode that programs write is no damage"
    (folder / "ty_wanted.py").chmod(0o644)
    (folder / "ty_wanted.py").write_text("")
    assert prepare(lock) == (folder, reports)
    assert (folder / "ty_wanted.py").read_text() == "answer = 42\n"


def test_other_content_than_the_lock_names_is_not_installed(prepare, tmp_path):
    lock = wheel(tmp_path / "wheels", "ty_wanted")
    wheel(tmp_path / "wheels", "ty_wanted", ["something"])
    with pytest.raises(install.FailedError, match=r"(?i)hash"):
        prepare(lock)


def test_what_stays_of_the_image_must_fit_and_both_versions_are_named(prepare, tmp_path, monkeypatch):
    monkeypatch.setattr(install, "installed", lambda: {"numpy": "1.0"})
    lock = wheel(tmp_path / "wheels", "ty_wanted", ["numpy>=2"])
    with pytest.raises(install.FailedError, match=r"ty_wanted 1\.0 needs numpy>=2, and the image has numpy 1\.0"):
        prepare(lock + f"numpy==2 {DIGEST}\n")
    with pytest.raises(install.FailedError, match=r"ty_wanted 1\.0 needs numpy>=2, and the image has numpy 1\.0"):
        prepare(lock)  # of a lock that leaves numpy to the image
    monkeypatch.setattr(install, "installed", dict)
    with pytest.raises(install.FailedError, match=r"ty_wanted 1\.0 needs numpy>=2, and the image has no numpy"):
        prepare(lock)
    monkeypatch.setattr(install, "installed", lambda: {"numpy": "1.0"})
    with pytest.raises(install.FailedError, match=r"the code needs numpy>=2\.3, and the image has numpy 1\.0"):
        prepare(f"#: numpy>=2.3\nnumpy==2.4 {DIGEST}\n")
    assert prepare(f"#: numpy>=0.9\nnumpy==2.4 {DIGEST}\n") == (None, [])


def test_the_network_is_tried_again_and_a_missing_version_is_not(tmp_path, monkeypatch):
    said = iter([tools.Failure("uv: error sending request", True), tools.Failure("uv: no version", False)])
    monkeypatch.setattr(tools, "install", lambda *_arguments: next(said))
    overlay = Overlay(tmp_path, "key")
    attempts = []
    with pytest.raises(install.FailedError, match="no version"):
        install._install(
            overlay, plan(read(f"a==1 {DIGEST}"), {}), (), install.Location(tmp_path, None, tmp_path),
            lambda number, _why: attempts.append(number),
        )  # fmt: skip
    assert attempts == [1]


def test_a_certificate_that_is_not_trusted_is_no_fault_of_the_network(tmp_path):
    uv = tmp_path / "uv"
    said = "error: error sending request: invalid peer certificate: UnknownIssuer"
    uv.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 2\n")
    uv.chmod(0o755)
    failure = tools.install(tools.Installer("uv", [str(uv)]), tmp_path / "lock", tmp_path, None, tmp_path)
    assert failure is not None
    assert not failure.transient


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            (
                "warning: x\nerror: Failed to fetch: `http://me:pw@h/simple/a/`\n"
                "  Caused by: HTTP status client error (401)"
            ),
            "Failed to fetch: `http://h/simple/a/` HTTP status client error (401)",
        ),
        ("ERROR: No matching distribution found for a==1", "No matching distribution found for a==1"),
    ],
)
def test_the_sentence_of_a_tool_is_one_line_without_credentials(said, sentence):
    assert tools.sentence(said) == sentence


def test_packages_that_no_round_used_for_a_month_are_deleted(tmp_path):
    for name in ("old", "new"):
        overlay = Overlay(tmp_path, name)
        (overlay.begin() / "a.py").write_text("1")
        overlay.commit()
    os.utime(tmp_path / "old.json", (0, 0))
    assert Overlay(tmp_path, "new").expire(KEPT_SECONDS + 1) == ["old"]
    assert Overlay(tmp_path, "new").is_whole()
    assert not Overlay(tmp_path, "old").folder.exists()


def test_the_exit_code_says_whether_another_pod_may_succeed(tmp_path, monkeypatch):
    def ended(error):
        def fail(*_arguments):
            raise error

        monkeypatch.setattr(install, "_installed", fail)
        written = []
        assert install.run({}, written.append) == written[-1]["exit"]
        return written[-1]["exit"]

    assert ended(install.FailedError("a")) == ExitCode.REQUIREMENTS_FAILED
    assert ended(OSError(28, "No space left on device")) == ExitCode.REQUIREMENTS_NOT_INSTALLED
