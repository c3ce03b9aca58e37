"""Archives of pods that want to write elsewhere, fill the disk or the memory: nothing of that happens."""

import io
import os
import tarfile

import pytest

from torchyard.client import artifacts as module
from torchyard.client.artifacts import Allowance, TooLargeError
from torchyard.client.errors import TorchYardError
from torchyard.client.remote.unpack import unpack


def entry(name, content=b"", kind=tarfile.REGTYPE, **fields):
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, len(content)
    for field, value in fields.items():
        setattr(member, field, value)
    return member, io.BytesIO(content)


def archive(folder, *entries, form=tarfile.PAX_FORMAT):
    path = folder / "sent.tar"
    with tarfile.open(path, "w", format=form) as tar:
        for member, content in entries:
            tar.addfile(member, content if member.size else None)
    return path


def folder_entry(name="fetched"):
    return entry(name, kind=tarfile.DIRTYPE, mode=0o755)


@pytest.fixture
def here(tmp_path):
    """Where it is unpacked; beside it lies what must not be touched."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def taken(here, *entries, size=10**6, **options):
    is_folder = unpack(archive(here.parent, *entries, **options), here / "got", Allowance(size, "1M"))
    return is_folder, {str(path.relative_to(here)): path for path in sorted(here.rglob("*"))}


def test_files_and_folders_come_as_they_are(here):
    is_folder, found = taken(here, folder_entry(), folder_entry("fetched/a"), entry("fetched/a/b", b"x", mode=0o4777))
    assert is_folder
    assert list(found) == ["got", "got/a", "got/a/b"]
    assert found["got/a/b"].read_bytes() == b"x"
    assert found["got/a/b"].stat().st_mode & 0o7111 == 0


def test_one_file_is_one_file(here):
    is_folder, found = taken(here, entry("fetched", b"abc"))
    assert not is_folder
    assert found["got"].read_bytes() == b"abc"


@pytest.mark.parametrize(
    "name",
    [
        "/etc/x", "../mine", "fetched/../../mine", "fetched/..", "fetched/./x", "fetched//x", "other/x", "", ".",
        "fetched/" + "a" * 256, "fetched/" + "/".join("a" * 40), "fetchedx",
    ],
)  # fmt: skip
def test_a_name_that_leaves_the_folder_is_refused(here, name):
    with pytest.raises(TorchYardError, match="archive is damaged"):
        taken(here, folder_entry(), entry(name, b"evil"))
    assert (here.parent / "mine").read_text() == "mine"
    assert {path.name for path in here.parent.iterdir()} == {"mine", "in", "sent.tar"}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_links_devices_and_pipes_are_left_out(here, kind):
    odd = entry("fetched/odd", kind=kind, linkname="../../mine")
    _, found = taken(here, folder_entry(), odd, entry("fetched/a", b"x"))
    assert list(found) == ["got", "got/a"]


def test_nothing_is_written_through_a_link(here):
    """As with flaws of `tarfile`: a link first, and then a file below it."""
    link = entry("fetched/way", kind=tarfile.SYMTYPE, linkname="../..")
    _, found = taken(here, folder_entry(), link, entry("fetched/way/mine", b"evil"))
    assert (here.parent / "mine").read_text() == "mine"
    assert found["got/way/mine"].read_bytes() == b"evil", "a folder of that name, below the target"


def test_a_link_that_another_program_puts_there_is_not_followed(here):
    (here / "got").symlink_to(here.parent)
    with pytest.raises(TorchYardError):
        taken(here, folder_entry(), entry("fetched/mine", b"evil"))
    with pytest.raises(TorchYardError):
        taken(here, entry("fetched", b"evil"))
    assert (here.parent / "mine").read_text() == "mine"


def test_what_comes_twice_is_refused(here):
    with pytest.raises(TorchYardError):
        taken(here, folder_entry(), entry("fetched/a", b"x"), entry("fetched/a", b"y"))


def test_sizes_are_limited(here):
    with pytest.raises(TooLargeError, match=r"it is larger than 1M"):
        taken(here, folder_entry(), entry("fetched/a", b"x" * 600), entry("fetched/b", b"x" * 600), size=1000)


def test_the_number_of_entries_is_limited(here, monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    with pytest.raises(TooLargeError, match="more than 3 files"):
        taken(here, *(folder_entry(f"fetched/{number}") for number in range(4)))


def test_a_header_that_would_fill_the_memory_is_refused(here):
    with pytest.raises(TorchYardError, match="a header of"):
        taken(here, entry("fetched/a", b"x", pax_headers={"comment": "x" * 2**21}))


def test_a_sparse_file_is_left_out(here):
    with pytest.raises(TorchYardError, match="empty"):
        taken(here, entry("fetched", b"", pax_headers={"GNU.sparse.major": "0", "GNU.sparse.size": str(2**40)}))


def extended(record):
    """An extended header of an archive, with one record."""
    member = tarfile.TarInfo("x")
    member.type, member.size = tarfile.XHDTYPE, len(record)
    return member.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"x" * 5000,
        b"\x1f\x8b" + os.urandom(500),
        extended(b"13 comment=x\n") * 3000,
        extended(b"99999999999999999999 a=b\n") + tarfile.TarInfo("fetched/a").tobuf(),
    ],
    ids=["nothing", "noise", "gzip", "headers of headers", "a length beyond words"],
)
def test_a_file_that_is_not_an_archive_is_named(here, sent):
    (here.parent / "sent.tar").write_bytes(sent)
    with pytest.raises(TorchYardError, match="archive is damaged"):
        unpack(here.parent / "sent.tar", here / "got", Allowance(10**6, "1M"))


def test_an_archive_that_ends_too_early_is_refused(here):
    whole = archive(here.parent, folder_entry(), entry("fetched/a", b"x" * 100_000)).read_bytes()
    (here.parent / "sent.tar").write_bytes(whole[:20_000])
    with pytest.raises(TorchYardError, match="archive is damaged"):
        unpack(here.parent / "sent.tar", here / "got", Allowance(10**6, "1M"))
