"""Which deaths the kernel caused for lack of memory: read from control groups as both versions of them look."""

import time

import pytest

from torchyard_agent.telemetry.memory import Memory
from torchyard_agent.workers import failure

GIB = 2**30
V1_LINES = "9:name=systemd:/pod\n4:cpu,memory:/kubepods/pod1\n0::/\n"
V1 = {"memory.limit_in_bytes": GIB, "memory.max_usage_in_bytes": GIB // 2}
V2 = {"memory.max": GIB, "memory.peak": GIB // 2}


class Group:
    """A control group of this version, mounted as on a node (`inside`: as in a container)."""

    def __init__(self, folder, *, version, inside):
        own = folder / "own"
        own.write_text(V1_LINES if version == 1 else "0::/kubepods/pod1\n")
        mount = folder / "mounts" / ("memory" if version == 1 else "")
        self.folder = mount if inside else mount / "kubepods" / "pod1"
        self.folder.mkdir(parents=True)
        self.version = version
        self.kill(0)
        self.set(V1 if version == 1 else V2)
        self.memory = Memory(folder / "mounts", own)

    def set(self, sizes):
        for name, size in sizes.items():
            (self.folder / name).write_text(f"{size}\n")

    def kill(self, count):
        if self.version == 1:
            (self.folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n")
        else:
            text = f"low 0\nhigh 0\nmax 71\noom 3\noom_kill {count}\noom_group_kill 0\n"
            (self.folder / "memory.events").write_text(text)


@pytest.fixture(params=[(1, True), (1, False), (2, True), (2, False)], ids=["v1 pod", "v1", "v2 pod", "v2"])
def group(request, tmp_path):
    version, inside = request.param
    return Group(tmp_path, version=version, inside=inside)


def test_an_oom_kill_is_attributed_to_the_process_that_died_at_that_time(group):
    group.memory.follow()
    assert not group.memory.killed_about(time.time())
    group.kill(1)
    group.memory.follow()
    now = time.time()
    assert group.memory.killed_about(now)
    assert not group.memory.killed_about(now + 60)
    assert group.memory.describe() == "limit 1.0 GiB, peak 512 MiB"


def test_a_kill_before_the_round_is_not_the_rounds(tmp_path):
    group = Group(tmp_path, version=2, inside=True)
    group.kill(7)
    later = Memory(tmp_path / "mounts", tmp_path / "own")
    later.follow()
    assert not later.killed_about(time.time())


@pytest.mark.parametrize(("version", "unlimited"), [(1, 9223372036854771712), (2, "max")])
def test_where_no_limit_was_set_the_node_was_short_of_memory(tmp_path, version, unlimited):
    group = Group(tmp_path, version=version, inside=True)
    group.set({"memory.limit_in_bytes" if version == 1 else "memory.max": unlimited})
    assert group.memory.describe() == "no limit was set, the node ran out of memory, peak 512 MiB"


def test_without_control_groups_nothing_is_known(tmp_path):
    memory = Memory(tmp_path / "nowhere", tmp_path / "nothing")
    memory.follow()
    assert not memory.killed_about(time.time())


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (137, "killed by SIGKILL", True),
        (1, "DataLoader worker (pid 311) is killed by signal: Killed. ", True),
        (1, "CUDA out of memory", False),
        (139, "killed by SIGSEGV", False),
    ],
)
def test_only_a_process_that_sigkill_ended_can_be_an_oom_kill(code, message, expected):
    record = failure.record(rank=0, local_rank=0, pid=1, code=code, time=1.0, found={"message": message})
    assert failure.is_sigkill(record) is expected
