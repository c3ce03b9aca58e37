"""`install`: what the init container of a training pod does. Half a file is never written."""

import json
import os
import subprocess
import sys

import pytest

from torchyard_agent.install import files, write_own


def installed(agent_pyz, *argv, **env):
    return subprocess.run(
        [sys.executable, str(agent_pyz), "install", *map(str, argv)],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_agent_and_every_file_are_there_and_the_copy_runs(agent_pyz, tmp_path):
    script = "print('ü $(HOME) `id`')\n"
    env = {
        "TORCHYARD_FILES": json.dumps({"config.json": 1, "script.py": 2, "empty": 0}),
        "TORCHYARD_FILE_0_0": '{"schema": 1}',
        "TORCHYARD_FILE_1_0": script[:9],
        "TORCHYARD_FILE_1_1": script[9:],
    }
    done = installed(agent_pyz, "--to", tmp_path, **env)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "bin/torchyard-agent.pyz").read_bytes() == agent_pyz.read_bytes()
    assert (tmp_path / "config/config.json").read_text() == '{"schema": 1}'
    assert (tmp_path / "config/script.py").read_text(encoding="utf-8") == script
    assert (tmp_path / "config/empty").read_bytes() == b""
    again = installed(tmp_path / "bin/torchyard-agent.pyz", "--to", tmp_path / "second")
    assert again.returncode == 0
    assert (tmp_path / "second/bin/torchyard-agent.pyz").exists()


def test_an_agent_without_an_installer_writes_its_files_and_forgets_them(tmp_path):
    others = {"TORCHYARD_JOB": "job"}
    env = {
        "TORCHYARD_FILES_TO": str(tmp_path),
        "TORCHYARD_FILES": json.dumps({"config.json": 1}),
        "TORCHYARD_FILE_0_0": '{"schema": 1}',
        **others,
    }
    write_own(env)
    assert (tmp_path / "config.json").read_text() == '{"schema": 1}'
    assert env == others
    write_own(env)
    assert env == others


@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_text_arrives_byte_for_byte_in_any_locale(agent_pyz, tmp_path, locale):
    env = {"TORCHYARD_FILES": '{"script.py": 1}', "TORCHYARD_FILE_0_0": "# \u4e2d\u6587 \U0001f600\n", "LC_ALL": locale}
    assert installed(agent_pyz, "--to", tmp_path, PYTHONCOERCECLOCALE="0", PYTHONUTF8="0", **env).returncode == 0
    assert (tmp_path / "config/script.py").read_bytes() == env["TORCHYARD_FILE_0_0"].encode()


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"TORCHYARD_FILES": '{"script.py": 2}', "TORCHYARD_FILE_0_0": "x"}, "TORCHYARD_FILE_0_1 is not set"),
        ({"TORCHYARD_FILES": '{"../x": 0}'}, "`../x` must be a plain file name"),
        ({"TORCHYARD_FILES": '{"..": 0}'}, "`..` must be a plain file name"),
        ({"TORCHYARD_FILES": '["x"]'}, "must be a JSON object"),
        ({"TORCHYARD_FILES": "{"}, "must be a JSON object"),
    ],
)
def test_missing_or_invalid_arguments_are_rejected(env, says):
    with pytest.raises(ValueError) as refused:
        files(env)
    assert says in str(refused.value)


def test_the_error_for_a_wrong_command_line_shows_the_right_one(agent_pyz, tmp_path):
    done = installed(agent_pyz, "--into", tmp_path)
    assert done.returncode == 64
    assert "python torchyard-agent.pyz install --to DIR" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_working_folder_that_is_not_there_reaches_kubectl_describe(agent_pyz, tmp_path):
    log = tmp_path / "termination-log"
    done = subprocess.run(
        [sys.executable, str(agent_pyz), "--", "torchrun", "train.py"],
        env={"TORCHYARD_WORKING_DIR": "no/such", "TORCHYARD_TERMINATION_LOG": str(log)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    said = json.loads(log.read_text())
    assert said["code"] == 64
    assert "spec.workingDir: `no/such` cannot be used as working directory" in said["failure"]["message"]


def test_workers_start_in_the_working_folder(pod, tmp_path, script):
    (tmp_path / "work").mkdir()
    node = pod(sys.executable, script("import os; print('at', os.getcwd())"), TORCHYARD_WORKING_DIR="work")
    node.ready()
    node.run()
    assert node.ended()["code"] == 0
    assert f"at {tmp_path / 'work'}" in node.log()
