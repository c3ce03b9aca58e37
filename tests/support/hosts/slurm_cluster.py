"""Slurm with two nodes on this machine: one slurmctld and two slurmd, without munge, accounting or control groups."""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.hosts import debian
from tests.support.waiting import DEADLINE

NODES = {"n1": "127.0.0.1", "n2": "127.0.0.2"}


class SlurmCluster:
    """The daemons, and the environment in which `sbatch` and `srun` find them."""

    def __init__(self, folder: Path) -> None:
        programs = {name: _daemon(name) for name in ("slurmctld", "slurmd", "slurmstepd")}
        plugins = debian.LIBRARIES / "slurm-wlm"
        ports = _free_ports(1 + len(NODES))
        user = getpass.getuser()
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr={address} Port={port} CPUs=1 State=UNKNOWN"
            for (name, address), port in zip(NODES.items(), ports[1:], strict=True)
        )
        folder.mkdir(parents=True)
        config = folder / "slurm.conf"
        config.write_text(f"""\
ClusterName=test
SlurmctldHost={socket.gethostname()}(127.0.0.1)
SlurmctldPort={ports[0]}
{f"PluginDir={plugins}" if plugins.exists() else ""}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
KillWait=30
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
{nodes}
PartitionName=two Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
        for name in ("state", *(f"spool.{name}" for name in NODES)):
            (folder / name).mkdir()
        self.env = {**debian.environment(), "SLURM_CONF": str(config)}
        self.folder = folder
        control = [programs["slurmctld"], "-D", "-c"]
        nodes_of = [[programs["slurmd"], "-D", "-N", name, "-d", programs["slurmstepd"]] for name in NODES]
        self.processes = [self._start(command) for command in (control, *nodes_of)]
        deadline = time.monotonic() + DEADLINE
        while self.run("sinfo", "--noheader", "--format=%T").split() != ["idle"]:
            assert all(process.poll() is None for process in self.processes), self.logs()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)

    def run(self, *words: str) -> str:
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, check=False)
        return done.stdout

    def logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        self.run("scancel", "--full", "--state=RUNNING", "--state=PENDING")
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            process.wait()

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        log = (self.folder / "daemons.log").open("ab")
        return subprocess.Popen(command, env=self.env, stdout=log, stderr=log, start_new_session=True)


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Start the daemons; end them, and every job, afterwards."""
    cluster = SlurmCluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()


def _daemon(name: str) -> str:
    """Return the path of a daemon, which Debian names with a suffix."""
    return shutil.which(name) or shutil.which(f"/usr/sbin/{name}") or debian.program(f"{name}-wlm", "slurm")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]
