"""Which control group gives the nodes of a cluster their part of the processor."""

import pytest
from share import share_files

NODE = "f47b2f5f9901"
HYBRID = f"2:cpuacct:/docker/{NODE}/init.scope\n1:cpu:/docker/{NODE}/init.scope\n0::/docker/{NODE}/init.scope\n"
TOGETHER = f"4:cpu,cpuacct:/docker/{NODE}\n1:name=systemd:/docker/{NODE}\n"


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        (HYBRID, [("cpu/docker/cpu.shares", 1024), ("docker/cpu.weight", 100)]),
        (TOGETHER, [("cpu/docker/cpu.shares", 1024)]),
        (f"0::/docker/{NODE}/init.scope\n", [("docker/cpu.weight", 100)]),
        (f"0::/a/docker/{NODE}\n", [("a/docker/cpu.weight", 100)]),
        (f"0::/system.slice/docker-{NODE}.scope/init.scope\n", []),
        (f"0::/{NODE}\n", []),
    ],
    ids=["both versions", "version 1", "version 2", "a group further down", "systemd", "no group above"],
)
def test_the_group_of_all_containers_is_found_and_no_other(groups, files):
    assert share_files(groups, NODE) == files
