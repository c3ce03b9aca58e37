"""What inputs are fetched from, and each way in which a fetch can fail; the servers are real ones of this machine."""

import contextlib
import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trustme
from tests.support.agents.sources import Hub, WebServer, serving
from tests.support.waiting import DEADLINE, until

from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.inputs import cache, fetch, source

DATA = bytes(range(256)) * 4096
SHA = hashlib.sha256(DATA).hexdigest()
COMMIT = "a" * 40


class Job:
    """The inputs of a job: a cache, its views, and what the newest fetch reported."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.views = folder / "cache", folder / "views"
        self.reports: list[dict] = []

    def settings(self, *inputs: dict) -> str:
        return json.dumps({"cache": str(self.cache), "views": str(self.views), "inputs": inputs})

    def fetch(self, **entry: str | list[str]) -> str:
        """Fetch one input in this process; return the message, empty if it is there."""
        self.reports.clear()
        fetch.run(self.settings({"name": "data", **entry}), self.reports.append)
        self.code = self.reports[-1]["exit"]
        return self.reports[-1]["message"]

    @property
    def state(self) -> dict:
        return self.reports[-2]["inputs"][0]

    def files(self) -> dict[str, bytes]:
        folder = self.views / "data"
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("**/*") if path.is_file()}

    def complete(self) -> list[Path]:
        """Folders of the cache that hold a whole input."""
        return [path for path in self.cache.iterdir() if path.is_dir() and path.suffix != ".partial"]


@pytest.fixture
def job(tmp_path, monkeypatch) -> Job:
    monkeypatch.setattr(fetch, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(fetch, "LOCK_SECONDS", 0.01)
    return Job(tmp_path)


@pytest.fixture
def web():
    with serving(WebServer()) as server:
        server.files["/data.bin"] = DATA
        yield server


def test_a_file_is_verified_read_only_and_fetched_once(job, web):
    web.redirects["/latest"] = "/data.bin?signature=1"
    address = f"{web.url}/latest"
    assert job.fetch(**{"from": address, "sha256": SHA}) == ""
    assert job.files() == {"latest": DATA}
    assert not (job.views / "data" / "latest").stat().st_mode & 0o222
    size = {"bytes": len(DATA), "totalBytes": len(DATA), "files": 1}
    assert job.state == {"name": "data", "state": "ready", "revision": SHA, **size}
    web.requests.clear()
    assert job.fetch(**{"from": address, "sha256": SHA}) == ""
    assert web.requests == []


def test_a_connection_that_breaks_is_continued_where_it_broke(job, web):
    web.cut["/data.bin"], web.codes["/data.bin"] = [300_000, 200_000], [503]
    assert job.fetch(**{"from": f"{web.url}/data.bin", "sha256": SHA}) == ""
    assert job.files() == {"data.bin": DATA}
    ranges = [(method, asked) for method, _, asked in web.requests if method == "GET"]
    assert ranges == [("GET", ""), ("GET", "bytes=300000-"), ("GET", "bytes=500000-")]


def test_what_was_left_over_and_is_wrong_is_fetched_from_its_begin(job, web):
    entry = cache.Entry(job.cache, source.Input("data", f"{web.url}/data.bin", sha256=SHA).key(SHA))
    entry.files.mkdir(parents=True)
    (entry.files / "data.bin").write_bytes(b"x" * 1000)
    (entry.files / "gone.bin").write_bytes(b"of another listing")
    assert job.fetch(**{"from": f"{web.url}/data.bin", "sha256": SHA}) == ""
    assert job.files() == {"data.bin": DATA}


def test_a_damaged_file_of_the_cache_is_fetched_again(job, web):
    assert job.fetch(**{"from": f"{web.url}/data.bin", "sha256": SHA}) == ""
    path = next(job.complete()[0].iterdir())
    path.chmod(0o644)
    path.write_bytes(b"short")
    assert job.fetch(**{"from": f"{web.url}/data.bin", "sha256": SHA}) == ""
    assert job.files() == {"data.bin": DATA}


@pytest.mark.parametrize(
    ("path", "digest", "end"),
    [
        ("/data.bin", "0" * 64, (ExitCode.INPUT_REJECTED, f"SHA-256 is {SHA}, not {'0' * 64}")),
        ("/absent.bin", SHA, (ExitCode.INPUT_REJECTED, "/absent.bin: HTTP 404 Not Found")),
        ("/secret.bin?key=1", SHA, (ExitCode.INPUT_REJECTED, "/secret.bin: HTTP 403 Forbidden")),
        ("/broken.bin", SHA, (ExitCode.INPUT_NOT_FETCHED, "/broken.bin: HTTP 500 Internal Server Error (6 attempts)")),
    ],
)
def test_a_file_that_cannot_be_had_is_named_with_the_reason(job, web, path, digest, end):
    web.codes = {"/broken.bin": [500] * 20, "/secret.bin": [403] * 20}
    message = job.fetch(**{"from": f"{web.url}{path}", "sha256": digest})
    code, words = end
    assert (job.code, job.complete()) == (code, [])
    assert message.startswith("input data: ")
    assert words in message


def test_no_network_is_tried_again_and_then_said(job):
    message = job.fetch(**{"from": "http://127.0.0.1:1/data.bin", "sha256": SHA})
    assert (job.code, message) == (
        ExitCode.INPUT_NOT_FETCHED,
        f"input data: 127.0.0.1:1: [Errno {errno.ECONNREFUSED}] Connection refused (6 attempts)",
    )


def test_an_encrypted_address_may_not_lead_to_one_that_is_not(job, web, monkeypatch, tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    secure = WebServer()
    secure.socket, secure.scheme = context.wrap_socket(secure.socket, server_side=True), "https"
    secure.files["/data.bin"] = DATA
    secure.redirects["/elsewhere.bin"] = f"{web.url}/data.bin"
    with serving(secure):
        assert job.fetch(**{"from": f"{secure.url}/data.bin", "sha256": SHA}) == ""
        message = job.fetch(**{"from": f"{secure.url}/elsewhere.bin", "sha256": SHA})
        monkeypatch.delenv("SSL_CERT_FILE")
        untrusted = job.fetch(**{"from": f"{secure.url}/other.bin", "sha256": SHA})
    assert job.code == ExitCode.INPUT_REJECTED
    assert message.endswith(f"redirects to {web.url}/data.bin, which is not encrypted")
    assert "its certificate is not trusted" in untrusted


@contextlib.contextmanager
def fetching(job, **entry):
    """A process that fetches, as an agent starts it; its pipe is closed with it."""
    read, write = os.pipe()
    code = "import sys; from torchyard_agent.inputs.fetch import main; main()"
    env = {**os.environ, fetch.VARIABLE: job.settings({"name": "data", **entry})}
    process = subprocess.Popen([sys.executable, "-c", code, str(write)], env=env, pass_fds=[write])
    os.close(write)
    with os.fdopen(read, "rb") as pipe, process:
        yield process, pipe
        process.kill()


def test_a_fetch_that_is_killed_is_continued_by_the_next_one(job, web):
    web.cut["/data.bin"], web.held["/data.bin"] = [500_000], threading.Event()
    entry = {"from": f"{web.url}/data.bin", "sha256": SHA}
    with fetching(job, **entry) as (process, _):
        until(lambda: [path for path in job.cache.glob("*/files/*") if path.stat().st_size >= 400_000])
        process.kill()
    web.held.pop("/data.bin").set()
    assert job.complete() == []
    assert job.fetch(**entry) == ""
    assert job.files() == {"data.bin": DATA}
    begun = int(web.requests[-1][2].removeprefix("bytes=").removesuffix("-"))
    assert begun >= 400_000


def test_of_two_pods_with_one_cache_one_fetches_and_the_other_waits(job, web, tmp_path):
    web.held["/data.bin"] = threading.Event()
    web.cut["/data.bin"] = [len(DATA) - 1, len(DATA)]
    entry = {"from": f"{web.url}/data.bin", "sha256": SHA}
    other = Job(tmp_path)
    other.views = tmp_path / "other"
    first, second = (threading.Thread(target=each.fetch, kwargs=entry, daemon=True) for each in (job, other))
    first.start()
    until(lambda: list(job.cache.glob("*/files/*")))
    second.start()
    until(lambda: any("another process" in str(report) for report in list(other.reports)))
    web.held.pop("/data.bin").set()
    for thread in (first, second):
        thread.join(DEADLINE)
    assert (job.code, other.code, other.files()) == (0, 0, {"data.bin": DATA})
    assert len([1 for method, *_ in web.requests if method == "GET"]) == 2  # the cut one, and its continuation


def test_too_little_space_is_said_before_the_first_byte(job, tmp_path):
    entry = cache.Entry(job.cache, "key")
    entry.files.mkdir(parents=True)
    huge = source.listing("r", [source.SourceFile("a", 1 << 62)], "s3://b/a")
    with pytest.raises(source.FetchError, match=r"no space: 4,611,686,018,427,387,904 bytes are missing, and [0-9,]+"):
        entry.check_space(huge)


def test_a_disk_that_is_full_is_said(job, web, monkeypatch):
    whole = Path.open

    def full(path, mode="r", **options):
        if mode == "wb":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return whole(path, mode, **options)

    monkeypatch.setattr(Path, "open", full)
    message = job.fetch(**{"from": f"{web.url}/data.bin", "sha256": SHA})
    assert job.code == ExitCode.INPUT_NOT_FETCHED
    assert "no space is left on the disk of the cache (No space left on device)" in message


@pytest.mark.parametrize(
    "names",
    [
        *(["../a"], ["a/../../b"], ["/etc/passwd"], ["a//b"], ["."], ["a\\b"], ["a\nb"], ["a\0b"], ["x" * 300]),
        *(["a", "a/b"], ["a", "a"], []),
    ],
)
def test_names_that_are_no_files_below_one_folder_are_rejected(names):
    with pytest.raises(source.RejectedInputError, match="s3://b"):
        source.listing("r", [source.SourceFile(name, 1) for name in names], "s3://b")


def test_a_mounted_folder_is_filled_and_others_become_links(tmp_path):
    (tmp_path / "cache" / "sub").mkdir(parents=True)
    (tmp_path / "cache" / "sub" / "a").write_text("1")
    (tmp_path / "mounted").mkdir()
    for _ in range(2):
        cache.show(tmp_path / "cache", tmp_path / "mounted")
        cache.show(tmp_path / "cache", tmp_path / "views" / "link")
    assert (tmp_path / "mounted" / "sub" / "a").stat().st_nlink == 2
    assert (tmp_path / "views" / "link").is_symlink()
    assert (tmp_path / "views" / "link" / "sub" / "a").read_text() == "1"


@pytest.fixture(scope="module")
def bucket():
    """A server of S3 with a bucket."""
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as patch:
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.get_host_and_port()[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        import boto3

        client = boto3.client("s3")
        client.create_bucket(Bucket="data")
        for key in ("train/a.txt", "train/deep/b.bin", "train2/c.txt", "odd/../up.txt"):
            client.put_object(Bucket="data", Key=key, Body=key.encode() * 100)
        yield client
        server.stop()


def test_objects_below_a_prefix_are_fetched(job, bucket):
    assert job.fetch(**{"from": "s3://data/train"}) == ""
    assert job.files() == {"a.txt": b"train/a.txt" * 100, "deep/b.bin": b"train/deep/b.bin" * 100}
    revision = job.state["revision"]
    assert job.fetch(**{"from": "s3://data/train/", "include": ["*.bin"]}) == ""
    assert set(job.files()) == {"deep/b.bin"}
    assert job.fetch(**{"from": "s3://data/train/a.txt"}) == ""
    assert set(job.files()) == {"a.txt"}
    bucket.put_object(Bucket="data", Key="train/new.txt", Body=b"new")
    job.cache = job.cache.with_name("of another pod")
    message = job.fetch(**{"from": "s3://data/train", "revision": revision})
    bucket.delete_object(Bucket="data", Key="train/new.txt")
    assert job.code == ExitCode.INPUT_REJECTED
    assert f"the job began with {revision[:12]}" in message


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("s3://data/none", "s3://data/none does not exist"),
        ("s3://nowhere/train", "s3://nowhere/train does not exist (The specified bucket does not exist)"),
        ("s3://data/odd", "'../up.txt' is not the name of a file below a folder"),
    ],
)
def test_objects_that_cannot_be_had_are_named_with_the_reason(job, bucket, address, words):
    assert words in job.fetch(**{"from": address})
    assert job.code == ExitCode.INPUT_REJECTED


@pytest.fixture
def hub(monkeypatch):
    with serving(Hub()) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        server.publish("org/model", COMMIT, {"config.json": b"{}", "deep/weights.bin": DATA})
        server.publish("datasets/org/rows", COMMIT, {"rows.bin": DATA})
        yield server


def test_a_branch_of_the_hub_becomes_a_commit_that_needs_no_network_again(job, hub):
    assert job.fetch(**{"from": "hf://org/model@main"}) == ""
    assert job.files() == {"config.json": b"{}", "deep/weights.bin": DATA}
    assert job.state["revision"] == COMMIT
    hub.publish("org/model", "b" * 40, {"config.json": b"{1}"})
    hub.requests.clear()
    assert job.fetch(**{"from": "hf://org/model@main", "revision": COMMIT}) == ""
    assert (hub.requests, set(job.files())) == ([], {"config.json", "deep/weights.bin"})
    assert job.fetch(**{"from": "hf://org/model@main"}) == ""
    assert job.files() == {"config.json": b"{1}"}
    assert job.fetch(**{"from": "hf://datasets/org/rows@main"}) == ""
    assert job.files() == {"rows.bin": DATA}


def test_files_of_the_hub_that_are_not_what_it_lists_are_rejected(job, hub):
    path = f"/org/model/resolve/{COMMIT}/config.json"
    hub.files[path] = b"[]"
    message = job.fetch(**{"from": "hf://org/model@main"})
    assert job.code == ExitCode.INPUT_REJECTED
    assert "config.json of hf://org/model@main is not what it should be: the blob of git is" in message
    assert "Repository Not Found" in job.fetch(**{"from": "hf://org/secret@main"})
    assert job.code == ExitCode.INPUT_REJECTED
