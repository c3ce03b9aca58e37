"""The nodes' part of a busy processor: that of several processes.

Docker puts all containers into one control group, and the kernel gives a group what it gives one process. Beside a test
run with dozens of processes, a whole cluster then gets a tenth of a core: nodes miss their heartbeats, and pods need
minutes to start.
"""

import re
from pathlib import Path

from shell import run

PROCESSES = 4
"""How many processes of the same priority all nodes together count as."""
GROUPS = Path("/sys/fs/cgroup")


def set_share(container: str, processes: int = PROCESSES) -> None:
    """Have the control group of all containers count as so many processes, if it is one of Docker's own.

    Args:
        container: name of any of them.
        processes: 1 is what Docker gives.
    """
    pid, identity = run("docker", "inspect", "--format", "{{.State.Pid}} {{.Id}}", container).split()
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
    except FileNotFoundError:  # the container does not run
        return
    for file, one in share_files(groups, identity):
        if (GROUPS / file).exists():
            (GROUPS / file).write_text(str(processes * one))


def share_files(groups: str, container: str) -> list[tuple[str, int]]:
    """Return the file with the share of the group that a container's group is in, and what one process has (pure).

    Empty where systemd manages the groups of containers: there they lie among those of services and sessions, each with
    its own share.

    Args:
        groups: text of /proc/PID/cgroup.
        container: id.
    """
    found = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        parent = re.fullmatch(rf"/(.+)/{container}(/.*)?", path)
        if parent is not None and "cpu" in controllers.split(","):
            found.append((f"cpu/{parent[1]}/cpu.shares", 1024))
        elif parent is not None and not controllers:
            found.append((f"{parent[1]}/cpu.weight", 100))
    return found
