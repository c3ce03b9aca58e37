"""Templates that several controlling processes share: whose they are, what has to be equal, and how they end."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from tests.support.waiting import until

from torchyard.api.resource import read_job
from torchyard.local import record, shared_templates
from torchyard.local.environment import pod_environment
from torchyard.local.process import identify
from torchyard.local.record import PodRecord
from torchyard.local.run import take_lock
from torchyard.local.shared_templates import OWNER, find_or_start, of_owner, owner_above
from torchyard.local.template import Imports, Template
from torchyard.local.templates import Templates, _has_relative_path, _read_of_config
from torchyard.local.zipapp import agent_zipapp

POD = PodRecord(uid="u", job_uid="j", name="p", index=0, incarnation=0, address="127.0.0.1", created=0, url="unix:/x")


@pytest.fixture
def template_folder(tmp_path, monkeypatch):  # tmp_path first: its folder is made where temporary files are
    with tempfile.TemporaryDirectory(prefix="ty-") as folder:  # that of pytest makes a name too long for a socket
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder, f"torchyard-{os.geteuid()}")


def test_the_owner_is_a_process_above():
    assert owner_above({}) is None
    assert owner_above({OWNER: str(os.getpid())}) == identify(os.getpid())
    assert owner_above({OWNER: str(os.getppid())}) == identify(os.getppid())
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        assert owner_above({OWNER: str(other.pid)}) is None, "it is below"
        other.stdin.close()
    with pytest.raises(ValueError, match=r"TORCHYARD_TEMPLATE_OWNER: `me` is no process id: set it to .*=\$\$"):
        owner_above({OWNER: "me"})


CHANGES = {
    "nothing": "",
    "umask": "os.umask(0o027)",
    "limits": "resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))",
    "nice": "os.nice(1)",
    "affinity": "os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})",
    "ignored signal": "signal.signal(signal.SIGUSR2, signal.SIG_IGN)",
    "blocked signal": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])",
    "memory": "path = Path('/proc/self/oom_score_adj'); path.write_text(str(int(path.read_text()) + 1))",
}
PROGRAM = f"""
import os, resource, signal
from pathlib import Path
from torchyard.local.shared_templates import inherited
for name, change in {CHANGES!r}.items():
    before = inherited()
    exec(change)
    after = inherited()
    print(name, [each for each in before if before[each] != after[each]])
"""


def test_what_a_process_inherits_is_compared():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    found = dict(line.rsplit(" [", 1) for line in done.stdout.splitlines())
    expected = {
        "nothing": "]",
        "umask": "'Umask']",
        "limits": "'limits']",
        "nice": "'nice']",
        "affinity": "'Cpus_allowed']" if len(os.sched_getaffinity(0)) > 1 else "]",
        "ignored signal": "'SigIgn']",
        "blocked signal": "'SigBlk']",
        "memory": "'oom_score_adj']",
    }
    assert found == expected


@pytest.mark.parametrize(
    ("name", "value", "relative"),
    [
        ("PYTHONPATH", "/a:lib", True),
        ("PYTHONPATH", "/a:", True),
        ("PATH", "/a:../b", True),
        ("HF_HOME", "cache", True),
        ("SETTINGS", "conf/a.yaml", True),
        ("PYTHONPATH", "/a:/b", False),
        ("PYTHONSAFEPATH", "1", False),
        ("LD_LIBRARY_PATH", "", False),
        ("http_proxy", "http://proxy:3128/", False),
        ("LR", "0.1", False),
    ],
)
def test_a_relative_path_in_the_environment_ties_a_template_to_a_folder(name, value, relative):
    assert _has_relative_path({name: value}) is relative


def test_workloads_that_import_the_same_share_a_template():
    def read(name, **parallelism):
        return _read_of_config(
            read_job({"metadata": {"name": "x"}, "spec": {"trainer": {"name": name}, "parallelism": parallelism}})
        )

    assert read("cvrp") == read("vecrl") == read("my.module:Work")
    assert read("lm") == read("vla") == read("vlm")
    different = [read("cvrp"), read("cvrp", compile=True), read("lm"), read("lm", compile=True)]
    assert all(different.count(each) == 1 for each in different)


def test_a_folder_that_others_may_enter_is_not_used(template_folder, tmp_path):
    template_folder.mkdir(mode=0o700)
    template_folder.chmod(0o750)
    owner = identify(os.getpid())
    with pytest.raises(PermissionError, match="is not a folder of this user alone"):
        find_or_start(Imports(tmp_path, ["torchrun"], {}), "key", owner)
    template_folder.rmdir()
    template_folder.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="is not a folder of this user alone"):
        find_or_start(Imports(tmp_path, ["torchrun"], {}), "key", owner)


def test_a_process_that_keeps_the_lock_is_not_waited_for(template_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shared_templates, "_LOCK_SECONDS", 0.1)
    template_folder.mkdir(mode=0o700)
    lock = take_lock(template_folder / "lock")
    with pytest.raises(TimeoutError, match="held by another process"):
        find_or_start(Imports(tmp_path, ["torchrun"], {}), "key", identify(os.getpid()))
    os.close(lock)


def test_the_one_that_was_unused_for_longest_gives_way(template_folder, tmp_path, monkeypatch):
    def waits(_imports, folder, **_options):
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        process = identify(child.pid)
        record.write(folder / "process.json", process)
        return Template(folder, process, child)

    monkeypatch.setattr(shared_templates, "begun", waits)
    monkeypatch.setattr(shared_templates, "_MOST", 2)
    owner = identify(os.getpid())

    def template(key):
        return find_or_start(Imports(tmp_path, ["torchrun"], {}), key, owner)

    first, second = template("a"), template("b")
    assert template("a").process == first.process
    third = template("c")
    assert set(of_owner(owner)) == {first.process, third.process}
    assert not second.alive
    for each in (first, third):
        each.close()


class Run:
    """A run as its controller sees it: a job of one node, and the template of its pods."""

    def __init__(self, folder, cache, name):
        self.folder = msgspec.structs.replace(folder, path=folder.path.with_name(name))
        self.agent = agent_zipapp(cache)
        metadata = {"name": name, "uid": name}
        self.job = read_job({"metadata": metadata, "spec": {"command": ["torchrun", "train.py"]}})

    async def template(self, templates, **more):
        env = pod_environment({**os.environ, **more}, self.job, POD, self.folder, 2)
        return await templates.of(self.job, self.agent, ["torchrun", "train.py"], env, self.folder.path)


@pytest.mark.e2e
async def test_controllers_below_one_owner_share_a_template(folder, shared_cache, template_folder, monkeypatch):
    monkeypatch.setenv(OWNER, str(os.getpid()))
    owner = identify(os.getpid())
    one, other = (Run(folder, shared_cache, name) for name in ("one", "other"))
    first = await one.template(Templates())
    assert (await other.template(Templates(), PWD="/elsewhere")).process == first.process
    differing = Templates()
    assert of_owner(owner) == [first.process]
    first.process.kill(signal.SIGSTOP)
    until(first.process.stopped)
    assert await other.template(Templates()) is None, "it is stopped: this pod imports torch itself"
    second = await one.template(Templates())
    assert second.process != first.process
    monkeypatch.setattr(shared_templates, "_MOST", 1)
    third = await one.template(differing, LANG="x")
    assert of_owner(owner) == [third.process], "it takes the place of the other one"
    await differing.close()
    assert third.alive, "it is not only theirs"
    third.close()
    assert {path.name for path in template_folder.iterdir()} == {"lock"}


@pytest.mark.e2e
def test_a_template_ends_with_its_owner_or_unused(shared_cache, template_folder, monkeypatch):
    env = {**os.environ, **{f"TORCHYARD_{name}": "x" for name in ("JOB", "NAMESPACE", "JOB_UID", "POD_NAME")}}
    env |= {"TORCHYARD_POD_INDEX": "0", "TORCHYARD_TOKEN_FILE": "x", "TORCHYARD_OPERATOR_URL": "unix:/none"}
    imports = Imports(agent_zipapp(shared_cache), ["torchrun"], env)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        ends = find_or_start(imports, "key", identify(process.pid))
        assert find_or_start(imports, "key", identify(process.pid)).process == ends.process
        process.stdin.close()
    until(lambda: not ends.alive)
    monkeypatch.setattr(shared_templates, "UNUSED_SECONDS", 0.1)
    unused = find_or_start(imports, "key", identify(os.getpid()))
    until(lambda: not unused.alive)
    assert unused.ended_by_itself
    until(lambda: {path.name for path in template_folder.iterdir()} == {"lock"})


@pytest.mark.e2e
async def test_the_second_job_of_one_node_of_a_program_has_a_template(folder, shared_cache):
    templates = Templates()
    one, other = (Run(folder, shared_cache, name) for name in ("one", "other"))
    assert await one.template(templates) is None
    assert await one.template(templates) is None, "its pod is replaced"
    begun = await other.template(templates)
    assert begun.alive
    assert (await one.template(templates)).process == begun.process
    await templates.close()
    assert not begun.alive
