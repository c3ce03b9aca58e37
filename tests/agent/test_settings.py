"""What an agent is started with: variables, command lines, and what is wrong with them."""

import sys
from pathlib import Path

import pytest

from torchyard_agent import settings
from torchyard_agent.workers import command
from torchyard_agent.workers.environment import KEEP_MEMORY, unpack, worker_environment
from torchyard_agent.workers.launcher import _shadowing, exec_arguments

REQUIRED = {
    "TORCHYARD_JOB": "job",
    "TORCHYARD_NAMESPACE": "default",
    "TORCHYARD_JOB_UID": "uid",
    "TORCHYARD_POD_NAME": "pod",
    "TORCHYARD_POD_INDEX": "0",
    "TORCHYARD_OPERATOR_URL": "http://127.0.0.1:1",
    "TORCHYARD_TOKEN_FILE": "/token",
    "TORCHYARD_RUN_DIR": "/run/torchyard",
}


@pytest.mark.parametrize(
    ("argv", "env", "words"),
    [
        (["true"], {}, "after `--`"),
        (["--"], {}, "is empty"),
        (["--port", "1", "--", "true"], {}, "unknown option `--port`"),
        (["--listen", "0.0.0.0:80", "--", "true"], {}, "loopback"),
        (["--", "true"], {"TORCHYARD_JOB": ""}, "TORCHYARD_JOB is not set"),
        (["--", "true"], {"TORCHYARD_PROCS": "many"}, "TORCHYARD_PROCS must be a number, got `many`"),
        (["--", "true"], {"TORCHYARD_OPERATOR_URL": "http://10.0.0.1"}, "https://"),
        (["--", "true"], {"TORCHYARD_OPERATOR_URL": "unix:intake.sock"}, "unix:/path"),
        (["--", "true"], {"TORCHYARD_OPERATOR_URL": "https://10.0.0.1"}, "TORCHYARD_CA_FILE"),
        (["--", "true"], {"TORCHYARD_METRIC_PATTERNS": '["("]'}, "TORCHYARD_METRIC_PATTERNS"),
        (["--", "true"], {"TORCHYARD_METRIC_PATTERNS": '["loss"]'}, "no named group"),
    ],
)
def test_wrong_settings_name_the_variable_and_what_it_should_be(argv, env, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        settings.read(argv, {**REQUIRED, **env})


def test_defaults_are_those_of_the_protocol():
    read = settings.read(["--listen=127.0.0.1:9464", "--", "torchrun", "t.py", "--", "x"], REQUIRED)
    assert (read.listen, read.command) == (("127.0.0.1", 9464), ("torchrun", "t.py", "--", "x"))
    assert (read.address, read.procs, read.grace_seconds, read.orphan_seconds) == ("127.0.0.1", None, 30, 300)
    assert read.warm_seconds == 120
    assert (read.warm_start, read.hooks, read.preload, read.termination_log) == (True, True, (), None)
    assert str(read.log_dir) == "/run/torchyard/logs"


def test_the_variables_in_the_two_json_variables_join_the_environment():
    env = {"A": "image", "B": "image", "TORCHYARD_ENV": '{"A": "job", "C": "job"}'}
    env["TORCHYARD_ENV_DEFAULTS"] = '{"A": "default", "B": "default", "C": "default", "D": "default"}'
    unpack(env)
    assert env == {"A": "job", "B": "image", "C": "job", "D": "default"}
    unpack(env)
    assert env == {"A": "job", "B": "image", "C": "job", "D": "default"}


@pytest.mark.parametrize("name", ["TORCHYARD_ENV", "TORCHYARD_ENV_DEFAULTS"])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"A": 1}', '{"A": null}'])
def test_variables_that_cannot_be_unpacked_are_named(name, text):
    with pytest.raises(ValueError, match=f"^{name} must be a JSON object of strings"):
        unpack({name: text})


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (["torchrun", "a.py"], command.Torchrun("/py", ("a.py",))),
        (["/opt/bin/torchrun", "-m", "a"], command.Torchrun("/py", ("-m", "a"))),
        (["python3.12", "-u", "-m", "torch.distributed.run", "a.py"], command.Torchrun("python3.12", ("a.py",))),
        (["python", "a.py"], command.Plain(("python", "a.py"))),
        (["accelerate", "launch", "a.py"], command.Plain(("accelerate", "launch", "a.py"))),
    ],
)
def test_torchrun_is_distinguished_from_every_other_command(argv, kind):
    assert command.classify(argv, "/py") == kind


def test_the_interpreter_behind_torchrun_is_found_also_behind_a_long_path(tmp_path):
    for number, head in enumerate((f"#!{sys.executable}\n", f'#!/bin/sh\n\'\'\'exec\' "{sys.executable}" "$0" "$@"\n')):
        script = tmp_path / str(number) / "torchrun"
        script.parent.mkdir()
        script.write_text(head)
        script.chmod(0o755)
        assert command.torchrun_interpreter(str(script)) == sys.executable


def test_arguments_of_a_cold_start_are_a_vector_and_never_a_shell_string():
    arguments = exec_arguments({"runDir": "/run"}, ["python", "a b.py", "; rm"], log="/logs/rank-{rank}.log")
    assert arguments[-3:] == ["python", "a b.py", "; rm"]


ELISION = "glibc.elision.enable=0"


@pytest.mark.parametrize(
    ("gpus", "own", "added"),
    [
        (0, {"MALLOC_ARENA_MAX": "2"}, KEEP_MEMORY),
        (0, {"GLIBC_TUNABLES": ELISION}, KEEP_MEMORY | {"GLIBC_TUNABLES": f"{ELISION}:glibc.malloc.hugetlb=1"}),
        (0, {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=100"}, {}),
        (0, {"MALLOC_TOP_PAD_": "65536"}, {}),
        (0, {"MALLOC_MMAP_MAX_": "100"}, {}),
        (2, {}, {}),
    ],
)
def test_memory_is_kept_where_there_is_no_gpu_and_the_user_set_nothing_like_it(gpus, own, added):
    env = {**REQUIRED, **own}
    workers = worker_environment(env, settings.read(["--", "true"], env), "http://127.0.0.1:1", Path("/token"), gpus)
    found = {name: value for name, value in workers.items() if name.startswith(("MALLOC_", "GLIBC_"))}
    assert found == {**own, **added}


def test_a_folder_that_cannot_be_listed_hides_no_module(tmp_path):
    assert _shadowing(tmp_path / "gone") is None
