"""`torchyard fetch`: what a job made is copied whole, compared with its manifest, and replaces nothing unasked."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from torchyard.client.artifacts import Artifact, artifacts_of
from torchyard.client.remote.fetch import LISTING


@pytest.fixture
def made(torchyard):
    """A run with an export and curves."""
    root = torchyard.record("cartpole") / "checkpoints"
    web = root / "export" / "web"
    (web / "js").mkdir(parents=True)
    (web / "index.html").write_text("<title>play</title>")
    (web / "js" / "play.js").write_text("play()")
    files = {
        path.relative_to(web).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in web.rglob("*")
        if path.is_file()
    }
    (web / "manifest.json").write_text(json.dumps({"schema": 1, "files": files}))
    (root / "metrics.jsonl").write_text('{"step": 1}\n')
    return root


def test_a_page_becomes_the_content_of_a_folder(torchyard, made):
    done = torchyard("fetch", "cartpole", "export/web", "-o", "site/public")
    assert (done.returncode, done.stdout) == (0, "site/public: 3 files, 262 B\n")
    public = torchyard.folder / "site" / "public"
    assert (public / "js" / "play.js").read_text() == "play()"
    assert sorted(path.name for path in public.parent.iterdir()) == ["public"]


def test_a_file_keeps_its_name_where_no_other_is_given(torchyard, made):
    assert torchyard("fetch", "cartpole", "metrics.jsonl").returncode == 0
    assert (torchyard.folder / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_what_is_there_stays_unless_it_is_to_be_replaced(torchyard, made):
    (torchyard.folder / "public").mkdir()
    (torchyard.folder / "public" / "mine.html").write_text("mine")
    refused = torchyard("fetch", "cartpole", "export/web", "-o", "public")
    assert (refused.returncode, "--replace" in refused.stderr) == (64, True)
    assert (torchyard.folder / "public" / "mine.html").read_text() == "mine"
    assert torchyard("fetch", "cartpole", "export/web", "-o", "public", "--replace").returncode == 0
    assert not (torchyard.folder / "public" / "mine.html").exists()


@pytest.mark.parametrize("place", [".", ".."])
def test_the_folder_one_is_in_is_not_replaced(torchyard, made, place):
    kept = torchyard.folder / "mine.html"
    kept.write_text("mine")
    refused = torchyard("fetch", "cartpole", "export/web", "-o", place, "--replace")
    assert (refused.returncode, f"-o {place} is the current folder" in refused.stderr) == (64, True), refused.stderr
    assert kept.exists()


def test_a_pipe_or_a_device_is_not_replaced(torchyard, made):
    os.mkfifo(torchyard.folder / "pipe")
    refused = torchyard("fetch", "cartpole", "metrics.jsonl", "-o", "pipe", "--replace")
    assert (refused.returncode, "pipe is neither a file nor a folder" in refused.stderr) == (64, True), refused.stderr
    assert (torchyard.folder / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("target", "reason"),
    [("/proc/x", "/proc takes no files"), ("file/x/y", "a part of its path is a file")],
)
def test_a_target_that_cannot_be_written_is_named_with_the_reason(torchyard, made, target, reason):
    (torchyard.folder / "file").write_text("mine")
    failed = torchyard("fetch", "cartpole", "metrics.jsonl", "-o", target)
    expected = f"torchyard: {target} cannot be written ({reason}); give another -o (to=)\n"
    assert (failed.returncode, failed.stderr) == (1, expected)


def test_what_is_not_what_its_manifest_says_does_not_come(torchyard, made):
    (made / "export" / "web" / "js" / "play.js").write_text("steal()")
    refused = torchyard("fetch", "cartpole", "export/web", "-o", "public")
    assert (refused.returncode, "js/play.js is not what its manifest says" in refused.stderr) == (1, True)
    assert not list(torchyard.folder.glob("*public*"))


@pytest.mark.parametrize("path", ["../job.yaml", "/etc/passwd", "export/../../job.yaml", ""])
def test_nothing_outside_the_checkpoint_folder_is_fetched(torchyard, made, path):
    refused = torchyard("fetch", "cartpole", path, "-o", "public")
    assert (refused.returncode, "is not a path in a checkpoint folder" in refused.stderr) == (64, True)


def test_a_link_out_of_the_folder_is_not_followed(torchyard, made):
    (made / "secrets").symlink_to("/etc")
    refused = torchyard("fetch", "cartpole", "secrets", "-o", "public")
    assert (refused.returncode, "a link out of its folder" in refused.stderr) == (64, True)


def test_what_is_missing_comes_with_what_there_is(torchyard, made):
    refused = torchyard("fetch", "cartpole", "export/onnx")
    assert refused.returncode == 64
    assert refused.stderr == "torchyard: the run 'cartpole' has no export/onnx; it has export/web, metrics.jsonl\n"


def test_without_a_path_what_can_be_fetched_is_listed_with_its_size(torchyard, made):
    (made / ".step-9.tmp").mkdir()
    (made / "outside").symlink_to("/etc")
    listed = torchyard("fetch", "cartpole")
    assert listed.returncode == 0
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["export/web", "262", "B", "3", "files"],
        ["metrics.jsonl", "12", "B"],
    ]
    assert listed.stderr == "next: torchyard fetch cartpole export/web\n"


def test_where_nothing_was_written_the_listing_reports_it(torchyard):
    torchyard.record("cartpole")
    refused = torchyard("fetch", "cartpole")
    assert (refused.returncode, "has no files to fetch" in refused.stderr) == (1, True)


def test_a_pod_lists_the_same_as_this_machine(made, capsys):
    (made / "outside").symlink_to("/etc")
    done = subprocess.run([sys.executable, "-c", LISTING, str(made)], capture_output=True, text=True, check=True)
    assert [Artifact(*found) for found in json.loads(done.stdout)] == artifacts_of(made)
