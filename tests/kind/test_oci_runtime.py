"""Where root lacks CAP_SYS_RESOURCE, containers are asked for everything else that they were asked for."""

import json

import oci_runtime
import pytest

PROCESS = {
    "args": ["/sbin/init"],
    "capabilities": {"bounding": ["CAP_KILL", "CAP_SYS_RESOURCE"], "effective": ["CAP_SYS_RESOURCE", "CAP_SYS_ADMIN"]},
    "oomScoreAdj": -500,
}
LOWERED = {
    "args": ["/sbin/init"],
    "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_SYS_ADMIN"]},
}


@pytest.fixture
def becomes_runc(monkeypatch):
    """Instead of becoming runc, tell what it would be called with."""
    calls = []
    monkeypatch.setattr(oci_runtime.shutil, "which", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(oci_runtime.os, "execv", lambda path, argv: calls.append(argv))
    return calls


@pytest.mark.parametrize("spelling", [["--bundle", "{}"], ["--bundle={}"], ["-b", "{}"]])
def test_a_container_is_created_without_the_capability(tmp_path, becomes_runc, spelling):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"process": PROCESS, "hostname": "worker"}))
    argv = ["--log", "log.json", "create", *(word.format(tmp_path) for word in spelling), "--pid-file", "pid", "abc"]

    oci_runtime.main(argv)

    assert json.loads(config.read_text()) == {"process": LOWERED, "hostname": "worker"}
    assert becomes_runc == [["/usr/sbin/runc", *argv]]


def test_a_process_is_added_without_the_capability(tmp_path, becomes_runc):
    process = tmp_path / "process.json"
    process.write_text(json.dumps(PROCESS))

    oci_runtime.main(["exec", "--process", str(process), "--detach", "abc"])

    assert json.loads(process.read_text()) == LOWERED


def test_an_oom_score_that_needs_no_capability_stays(tmp_path, becomes_runc):
    process = tmp_path / "process.json"
    process.write_text(json.dumps({"args": ["sleep"], "oomScoreAdj": 300}))

    oci_runtime.main(["exec", "-p", str(process), "abc"])

    assert json.loads(process.read_text()) == {"args": ["sleep"], "oomScoreAdj": 300}


def test_every_other_call_is_runcs_alone(becomes_runc):
    oci_runtime.main(["kill", "abc", "15"])

    assert becomes_runc == [["/usr/sbin/runc", "kill", "abc", "15"]]
