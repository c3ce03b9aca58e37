"""The user's code as a bundle: which files travel, one digest everywhere, and trees that cannot travel."""

import io
import os
import socket
import subprocess
import tarfile

import pytest

from torchyard.client.bundle import listing
from torchyard.client.bundle.archive import archive, parts
from torchyard.client.bundle.bundle import bundle_of
from torchyard.client.bundle.contents import CodeFile
from torchyard.client.errors import TorchYardError
from torchyard_agent.workers.code import Code, MismatchError, MissingError, digest_of, ready

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def git(folder, *words):
    subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True)


def repository(folder, files):
    write(folder, files)
    git(folder, "init")
    git(folder, "add", "--all")
    git(folder, "commit", "--message", "first")
    return folder


def names(folder):
    return [file.path for file in bundle_of(folder).files]


def sent(bundle, folder):
    """Put the archive of a bundle where an agent finds it; return the code of a round."""
    arrived = folder / "parts"
    arrived.mkdir()
    for number, part in enumerate(parts(bundle.archived())):
        (arrived / f"part-{number:04}").write_bytes(part)
    return Code(bundle.digest, folder / "code", arrived)


TREE = {
    "train.py": "import model\n",
    "model/__init__.py": "",
    "data/weights.bin": bytes(range(256)) * 9,
    "configs/größe 😀.yaml": "a: 1\n",
    "run.sh": "#!/bin/sh\n",
    ".gitignore": "*.log\n/out/\n",
    "model/.gitignore": "scratch\n",
    "model/scratch": "no",
    "a.log": "no",
    "out/x": "no",
    "model/__pycache__/x.pyc": "no",
}
SENT = [".gitignore", "configs/größe 😀.yaml", "data/weights.bin", "model/.gitignore", "model/__init__.py", "run.sh"]


def tree(folder):
    write(folder, TREE)
    (folder / "run.sh").chmod(0o755)
    (folder / "latest").symlink_to("./configs/")
    return folder


def test_the_digest_is_the_same_with_and_without_git_and_under_any_umask(tmp_path):
    one = tree(repository(tmp_path / "one", {"train.py": "old"}))
    before = os.umask(0o077)
    try:
        other = tree(tmp_path / "other")
    finally:
        os.umask(before)
    found = bundle_of(one)
    assert [file.path for file in found.files] == sorted([*SENT, "latest", "train.py"], key=str.encode)
    assert found.digest == bundle_of(other).digest
    assert {"a.log", "out/", "model/__pycache__/", "model/scratch"} <= set(found.left_out) & set(
        bundle_of(other).left_out
    )


def test_an_agent_unpacks_the_same_bits_read_only_under_the_same_digest(tmp_path):
    bundle = bundle_of(tree(tmp_path / "tree"))
    code = sent(bundle, tmp_path)
    folder = ready(code)
    assert folder == tmp_path / "code" / bundle.digest
    assert digest_of(folder) == bundle.digest
    assert {file.path: (folder / file.path).read_bytes() for file in bundle.files if file.type == "file"} == {
        name: text if isinstance(text, bytes) else text.encode() for name, text in TREE.items() if name in names(folder)
    }
    assert os.access(folder / "run.sh", os.X_OK)
    assert os.readlink(folder / "latest") == "./configs/"  # noqa: PTH115 - pathlib would clean it
    assert (folder / "latest" / "größe 😀.yaml").read_text() == "a: 1\n"
    assert not any(path.stat().st_mode & 0o222 for path in (folder, folder / "train.py", folder / "model"))
    assert {each.name for each in (tmp_path / "code").iterdir()} == {".lock", bundle.digest}


def test_code_that_was_changed_after_unpacking_is_unpacked_again(tmp_path):
    code = sent(bundle_of(write(tmp_path / "tree", {"a.py": "x = 1"})), tmp_path)
    folder = ready(code)
    (folder / "a.py").chmod(0o644)
    (folder / "a.py").write_text("x = 2")
    assert (ready(code) / "a.py").read_text() == "x = 1"


def test_an_edit_of_equal_size_and_time_is_another_digest(tmp_path):
    folder = write(tmp_path, {"a.py": "x = 1"})
    first = bundle_of(folder).digest
    times = (folder / "a.py").stat()
    write(folder, {"a.py": "x = 2"})
    os.utime(folder / "a.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert bundle_of(folder).digest != first


IGNORE = r"""
*.log
!keep.log
build/
\#b
\[c\]
d?e
/out
a/**/d.bin
**/e.*
b/a/*
*.py[co]
# z
"""
OF_PATTERNS = (
    "a.log", "keep.log", "x/a.log", "x/keep.log", "x/build/a", "build", "y/#b", "y/[c]", "y/d e", "z", "a/b/c/d.bin",
    "a/b/d.bin", "a/e.tmp", "b/a/b/f", "x/out/o", "out/o", "x/y/z.py", "x/y/z.pyc", "x/no.log",
)  # fmt: skip


def test_patterns_of_every_kind_are_read_as_git_reads_them(tmp_path):
    files = {**dict.fromkeys(OF_PATTERNS, "1"), ".gitignore": IGNORE, "x/.gitignore": "!no.log\n/y/*\n!/y/z.py\n"}
    travelling = names(write(tmp_path / "plain", files))
    (tmp_path / "git").mkdir()
    git(tmp_path / "git", "init")
    assert travelling == names(write(tmp_path / "git", files))
    expected = {".gitignore", "x/.gitignore", "keep.log", "x/keep.log", "x/no.log", "x/y/z.py", "build", "x/out/o", "z"}
    assert set(travelling) == expected


def test_torchyardignore_leaves_files_out_and_brings_ignored_ones_back(tmp_path):
    files = {".gitignore": "data/\n*.bin\n", "data/big": "no", "data/small/a.csv": "1", "x.bin": "1", "y.bin": "2"}
    ignore = {".torchyardignore": "docs/\n!data/small/*.csv\n!x.bin\n", "docs/a.md": "no", "train.py": "1"}
    sent_files = [".gitignore", ".torchyardignore", "data/small/a.csv", "train.py", "x.bin"]
    assert names(repository(tmp_path / "git", files | ignore)) == sent_files
    plain = write(tmp_path / "plain", files | ignore)
    assert names(plain) == sent_files
    assert bundle_of(plain).left_out == ["data/", "docs/", "y.bin"]


def test_files_behind_a_folder_that_became_a_link_do_not_travel(tmp_path):
    elsewhere = write(tmp_path / "elsewhere", {"x.csv": "private"})
    folder = repository(tmp_path / "code", {"train.py": "1", "data/x.csv": "1"})
    (folder / "data/x.csv").unlink()
    (folder / "data").rmdir()
    (folder / "data").symlink_to(elsewhere)
    write(folder, {".torchyardignore": "/data\n!data/x.csv\n"})
    assert names(folder) == [".torchyardignore", "train.py"]


def test_without_git_a_folder_that_torchyardignore_names_is_not_entered(tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "MAX_WALKED", 9)
    folder = write(tmp_path, {"train.py": "1", ".torchyardignore": "data/\n"})
    write(folder, {f"data/{number}": "" for number in range(20)})
    found = bundle_of(folder)
    assert ([file.path for file in found.files], found.left_out) == ([".torchyardignore", "train.py"], ["data/"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
@pytest.mark.parametrize("make", [write, repository])
def test_an_unreadable_folder_is_refused_by_name_or_left_out(make, tmp_path):
    folder = make(tmp_path / "code", {"train.py": "1"})
    write(folder, {"d/x": "1"})
    (folder / "d").chmod(0)
    try:
        with pytest.raises(TorchYardError, match="code: d/ cannot be read"):
            bundle_of(folder)
        write(folder, {".torchyardignore": "d/\n"})
        assert "d/" in bundle_of(folder).left_out
    finally:
        (folder / "d").chmod(0o755)


def test_what_a_submission_prints(tmp_path):
    folder = write(tmp_path, {"a.py": "x" * 2048, "A.py": "1", "__pycache__/a": "1"})
    first, second, third = bundle_of(folder).sentences()
    assert first.startswith("code: 2 files, 2 KiB, largest: a.py 2 KiB, A.py 1 B; digest ")
    assert second == "code: left out: __pycache__/"
    assert third == "code: A.py and a.py are one file on some machines, such as a Mac"


def test_commit_branch_and_changes_of_a_folder(tmp_path):
    folder = repository(tmp_path, {"a.py": "x = 1\n"})
    write(folder, {"a.py": "x = 2\n"})
    found = bundle_of(folder).provenance
    assert (len(found.commit), found.branch) == (40, "main")
    assert "-x = 1\n+x = 2\n" in found.diff


def a_socket(folder):
    (server := socket.socket(socket.AF_UNIX)).bind(str(folder / "s"))
    server.close()


HOSTILE = {
    "link to a file outside": (
        lambda f: (f / "leak").symlink_to("/etc/passwd"),
        "leak is a link that leaves the folder",
    ),
    "link up": (lambda f: (f / "up").symlink_to("../x"), "up is a link that leaves"),
    "link through a link": (
        lambda f: ((f / "here").symlink_to("."), (f / "up").symlink_to("here/../..")),
        "up is a link that leaves",
    ),
    "pipe": (lambda f: os.mkfifo(f / "p"), "p is a pipe"),
    "socket": (a_socket, "s is a socket"),
    "pipe of patterns": (lambda f: os.mkfifo(f / ".torchyardignore"), ".torchyardignore is not a file"),
    "repository": (lambda f: git(write(f / "n", {"a": "1"}), "init"), "n/ is a repository of its own"),
    "not UTF-8": (lambda f: (f / "\udcff.py").touch(), r"the name b'\xff.py' is not UTF-8"),
    "control character": (lambda f: write(f, {"a\nb": "1"}), r"the name 'a\nb' has a control character"),
    "deep": (lambda f: write(f, {"d/" * 33 + "a": "1"}), "has more than 32 folders"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_tree_that_cannot_travel_is_refused_by_name(kind, tmp_path):
    spoil, sentence = HOSTILE[kind]
    write(tmp_path, {"train.py": "1"})
    spoil(tmp_path)
    with pytest.raises(TorchYardError) as caught:
        bundle_of(tmp_path)
    assert sentence in str(caught.value)
    assert caught.value.code == 64


def test_limits_name_size_count_and_the_largest_files(tmp_path):
    write(tmp_path, {"train.py": "1", "data/x.bin": os.urandom(9 << 20)})
    with pytest.raises(TorchYardError) as caught:
        bundle_of(tmp_path).archived()
    sentence = (
        "code: 9 MiB in 2 files, the limit is 8 MiB compressed; largest: data/x.bin 9 MiB, train.py 1 B; add it to"
    )
    assert str(caught.value).startswith(sentence)
    os.truncate(tmp_path / "data/x.bin", 65 << 20)
    with pytest.raises(
        TorchYardError, match=r"code: 65 MiB in 2 files, the limit is 64 MiB; largest: data/x.bin 65 MiB"
    ):
        bundle_of(tmp_path)


def test_too_many_files_are_refused_with_their_number(tmp_path):
    write(tmp_path, {"a": "12345"})
    for number in range(20_000):
        os.link(tmp_path / "a", tmp_path / f"{number}")
    with pytest.raises(
        TorchYardError, match=r"code: 97.7 KiB in 20,001 files, the limit is 20,000 files; largest: 0 5 B"
    ):
        bundle_of(tmp_path)


def archived(*members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, kind, content in members:
            header = tarfile.TarInfo(name)
            header.type = kind
            if kind == tarfile.REGTYPE:
                header.size = len(content)
            else:
                header.linkname = content.decode()
            tar.addfile(header, io.BytesIO(content))
    return file.getvalue()


REG, SYM = tarfile.REGTYPE, tarfile.SYMTYPE
LIES = {
    "leaves by name": archived(("../x", REG, b"1")),
    "absolute": archived(("/x", REG, b"1")),
    "through a link": archived(("d", SYM, b"e"), ("d/x", REG, b"1")),
    "link out": archived(("d", SYM, b"../..")),
    "links out together": archived(("a", SYM, b"."), ("b", SYM, b"a/../..")),
    "hard link": archived(("a", tarfile.LNKTYPE, b"b")),
    "device": archived(("a", tarfile.CHRTYPE, b"")),
    "pipe": archived(("a", tarfile.FIFOTYPE, b"")),
    "twice": archived(("a", REG, b"1"), ("a", REG, b"2")),
    "control character": archived(("a\nb", REG, b"1")),
    "other files": archived(("a", REG, b"1")),
    "cut": archive([CodeFile("a", "0644", "file", os.urandom(999))])[:-40],
    "no archive": b"x" * 99,
}


@pytest.mark.parametrize("lie", LIES)
def test_an_archive_that_lies_is_refused_and_leaves_nothing(lie, tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/part-0000").write_bytes(LIES[lie])
    with pytest.raises(MismatchError):
        ready(Code("ab" * 32, tmp_path / "code", tmp_path / "parts"))
    assert [each.name for each in (tmp_path / "code").iterdir()] == [".lock"]


def test_code_that_has_not_arrived_is_missing(tmp_path):
    with pytest.raises(MissingError, match="the code abababababab has not arrived"):
        ready(Code("ab" * 32, tmp_path / "code", tmp_path / "parts"))
