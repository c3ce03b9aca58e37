"""Where memory is lacking, the kernel kills a worker, and neither the agent nor the zygote that start the next one."""

import os
import sys
from pathlib import Path

import pytest
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

LIMIT = 1536 * 2**20
GROUPS = Path("/sys/fs/cgroup")
HOLDS = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"
ENDS = "print('done', flush=True)\n"
# Each ends by a kill, or by the bound.
TAKES = """
taken = []
while len(taken) < 400:
    taken.append(bytearray(8 * 2**20))
"""
# Files in memory are the memory of no process.
WRITES = """
import os
with open(os.environ["FILE"], "wb", buffering=0) as file:
    while file.tell() < 400 * 8 * 2**20:
        file.write(bytes(8 * 2**20))
"""


def score(pid):
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def parent(pid):
    fields = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    return int(fields["PPid"])


def expected(agent):
    """Scores of agent, launcher and worker: half of the way to the highest, and all of it."""
    lowest = score(agent)
    return [lowest, lowest + round((1000 - lowest) * 0.5), 1000]


def test_the_kernel_kills_a_warm_worker_before_its_launcher_and_both_before_the_zygote(node, script):
    node.run(program=script(HOLDS))
    worker = node.workers(1)["0"]
    launcher = parent(worker)
    zygote = parent(launcher)
    assert parent(zygote) == node.process.pid
    lowest, middle, highest = expected(node.process.pid)
    assert [score(pid) for pid in (node.process.pid, zygote, launcher)] == [lowest, lowest, middle]
    # It raises its score a moment after the launcher knows of it.
    node.until_it_says("here")
    assert score(worker) == highest


@pytest.mark.parametrize("torchrun", [True, False], ids=["torchrun", "plain"])
def test_the_kernel_kills_a_cold_worker_before_its_launcher(pod, script, torchrun):
    program = script(HOLDS)
    command = ("torchrun", program) if torchrun else (sys.executable, program)
    one = pod(*command, TORCHYARD_WARM_START="0")
    one.ready()
    one.run()
    one.until_it_says("here")
    worker = one.workers(1)["0"]
    assert [score(pid) for pid in (one.process.pid, parent(worker), worker)] == expected(one.process.pid)


@pytest.fixture
def group():
    """A control group of its own whose memory has a limit; gone afterwards."""
    mount, limit = (
        (GROUPS / "memory", "memory.limit_in_bytes") if (GROUPS / "memory").is_dir() else (GROUPS, "memory.max")
    )
    folder = mount / f"torchyard-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here ({error.strerror}): run as root, on Linux")
    try:
        if not (folder / limit).exists():
            pytest.skip(f"{mount} does not limit memory: mount control groups with their memory controller")
        (folder / limit).write_text(str(LIMIT))
        yield folder
    finally:
        folder.rmdir()


@pytest.mark.parametrize("fault", [TAKES, WRITES], ids=["its own memory", "files in memory"])
def test_the_kernel_kills_the_worker_alone_and_the_next_round_is_warm(group, pod, script, tmp_path, fault):
    python = tmp_path / "python"
    # As a kubelet does for a pod whose request is small beside its node: there is next to no score left to raise.
    score = "echo 990 > /proc/self/oom_score_adj"
    python.write_text(f'#!/bin/sh\n{score}\necho $$ > {group}/cgroup.procs\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    taken = Path("/dev/shm") / group.name
    chosen = script("import os\nexec(open(os.environ['PROGRAM']).read())\n", "chosen.py")
    one = pod("torchrun", chosen, python=str(python), FILE=str(taken))
    try:
        one.ready()
        (zygote,) = children(one.process.pid)
        one.run(program=script(fault))
        ended = one.ended()
    finally:
        taken.unlink(missing_ok=True)
    assert (ended["code"], ended["failure"]["rank"], ended["failure"]["outOfMemory"]) == (137, 0, True)
    assert children(one.process.pid) == [zygote]
    one.run(program=script(ENDS))
    assert one.ended()["code"] == 0
    assert one.process.poll() is None
    one.close()
    until(lambda: not (group / "cgroup.procs").read_text())


def children(pid):
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
