"""What a host lacks is named before anything is sent to it, all at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.agent.test_requirements import wheel

from torchyard.api.resource import read_job
from torchyard.api.spec import TrainingJobSpec
from torchyard.client.errors import TorchYardError
from torchyard.client.hosts import preflight
from torchyard.client.hosts.code import code_of, requirements_of
from torchyard.client.hosts.launch import HostOptions, start
from torchyard.client.hosts.package import Platform
from torchyard.client.hosts.preflight import Home, Probe, Torch
from torchyard.client.hosts.setup import create_environment
from torchyard.client.hosts.ssh import Host
from torchyard.client.start import RequestedJob

GOOD = Probe(
    time=0.0, python=(3, 12, 1), executable="/usr/bin/python3", system="Linux", machine="x86_64", libc="glibc 2.39",
    name="gpu-box", addresses=("10.0.0.5",), home=Home("/home/me/.torchyard", writable=True, free=2**40), search=(),
    pythons=(("/usr/bin/python3", (3, 12)),), uv=None, torchrun=None, driver=("570.1, H100", "570.1, H100"),
    missing=(), torch=Torch("2.13.0", "12.8", ("H100", "H100")),
)  # fmt: skip


def spec(**fields: object) -> TrainingJobSpec:
    return read_job({"metadata": {"name": "demo"}, "spec": {"script": "pass", **fields}}).spec


@pytest.mark.parametrize(
    ("probe", "job", "expected"),
    [
        (GOOD, spec(gpusPerNode=2), []),
        (replace(GOOD, system="Darwin"), spec(), ["must run Linux"]),
        (replace(GOOD, clock_seconds=130.0), spec(), ["differs by 130 s"]),
        (replace(GOOD, home=Home("/nfs", writable=False, free=2**40)), spec(), ["/nfs cannot be written"]),
        (replace(GOOD, python=(3, 8, 1)), spec(), ["is Python 3.8.1: name one of at least 3.9"]),
        (replace(GOOD, pythons=()), spec(), ["no Python 3.11 to 3.13 for the controller"]),
        (replace(GOOD, torch=Torch(error="no module")), spec(), ["cannot import torch (no module)"]),
        (replace(GOOD, missing=("transformers",)), spec(), ["lacks transformers"]),
        (replace(GOOD, driver=()), spec(gpusPerNode=1), ["no NVIDIA driver"]),
        (GOOD, spec(gpusPerNode=4), ["has 2 GPUs and the job needs 4"]),
        (
            replace(GOOD, torch=Torch("2.13.0", "", (), "no kernel image")),
            spec(gpusPerNode=1),
            ["a computation on its GPUs fails (no kernel image; driver 570.1, torch built for no CUDA)"],
        ),
        (
            replace(GOOD, clock_seconds=99.0, home=Home("/", writable=True, free=1), python=(3, 8, 1)),
            spec(),
            ["clock", "1 B free", "3.8.1"],
        ),
    ],
)
def test_what_is_missing_is_named_with_what_to_do(probe: Probe, job: TrainingJobSpec, expected: list[str]) -> None:
    found = preflight.problems(Host("gpu-box"), probe, job, 1, creates=False)
    assert len(found) == len(expected)
    assert all(part in sentence for part, sentence in zip(expected, found, strict=True)), found


def test_uv_replaces_python_and_torch_but_must_be_there() -> None:
    bare = replace(GOOD, python=(3, 6, 9), pythons=(), torch=Torch(error="no module"))
    (problem,) = preflight.problems(Host("gpu-box"), bare, spec(), 1, creates=True)
    assert "no uv" in problem
    assert preflight.problems(Host("gpu-box"), replace(bare, uv="/usr/bin/uv"), spec(), 1, creates=True) == []


def test_the_probe_reports_what_this_machine_has(tmp_path: Path) -> None:
    wanted = {"torch": False, "gpus": 0, "modules": ["json", "no_such_module"], "home": str(tmp_path / "new/folder")}
    probe = Path(preflight.__file__).with_name("probe.py").read_bytes()
    done = subprocess.run([sys.executable, "-", json.dumps(wanted)], input=probe, capture_output=True, check=True)
    report = json.loads(done.stdout.decode().removeprefix(preflight.MARK))
    assert report["python"] == list(sys.version_info[:3])
    assert report["missing"] == ["no_such_module"]
    assert report["home"] == {"path": str(tmp_path / "new/folder"), "writable": True, "free": report["home"]["free"]}
    assert not (tmp_path / "new").exists()


def test_libraries_of_this_machine_fit_only_the_same_python_and_libc() -> None:
    here = Platform((3, 12), "x86_64", "glibc 2.36")
    assert here.runs_files_of(Platform((3, 12), "x86_64", "glibc 2.41"))
    others = [((3, 11), "x86_64", "glibc 2.36"), ((3, 12), "aarch64", "glibc 2.36"), ((3, 12), "x86_64", "musl")]
    assert not any(here.runs_files_of(Platform(*each)) for each in others)


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "a b", "a\nb"])
def test_the_name_of_a_host_is_no_option_of_ssh(name: str) -> None:
    with pytest.raises(TorchYardError, match="not the name of a machine"):
        Host(name)


def test_the_words_of_a_command_reach_the_host_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHYARD_SSH", "sh -c 'shift $(($# - 1)); exec sh -c \"$1\"' ssh")
    words = ["two words", "'quoted'", "$HOME `id` \\", "é"]
    assert Host("box").run('printf "%s\\n" "$@"', *words).decode().splitlines() == words


def test_hosts_get_the_versions_of_the_lock_and_without_uv_such_a_job_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    wheel(tmp_path / "wheels", "ty_one", ["ty_two"])
    wheel(tmp_path / "wheels", "ty_two")
    (tmp_path / "needs.txt").write_text("ty_one\n")
    job = read_job({
        "metadata": {"name": "demo"},
        "spec": {"command": ["a"], "code": {"path": ".", "requirements": "needs.txt", "wheels": "wheels"}},
    })  # fmt: skip
    wanted = RequestedJob(job, tmp_path, "job.yaml", is_file=True)
    said: list[str] = []
    assert requirements_of(wanted, code_of(wanted), GOOD, said.append) == "ty-one==1.0\nty-two==1.0"
    monkeypatch.setenv("TORCHYARD_SSH", "false")
    with pytest.raises(TorchYardError, match="add --uv"):
        start(wanted, None, HostOptions(("alpha",), ("",)), said.append)
    with pytest.raises(TorchYardError, match="alpha"):  # which it asks
        start(wanted, None, HostOptions(("alpha",), ("",), creates_environment=True), said.append)


def test_a_failed_environment_has_the_sentence_of_uv_without_its_hints(tmp_path):
    uv = tmp_path / "uv"
    said = "error: no such wheel\\n  Caused by: a certificate\\nhint: x\\n"
    uv.write_text(f"#!/bin/sh\nprintf '{said}' >&2\nexit 2\n")
    uv.chmod(0o755)
    with pytest.raises(TorchYardError, match="on this machine: no such wheel a certificate; correct the requirements"):
        create_environment(
            Host(""), replace(GOOD, uv=str(uv), home=replace(GOOD.home, path=str(tmp_path))), "", trainer=False
        )
