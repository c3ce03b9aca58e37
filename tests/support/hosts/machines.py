"""Two machines that ssh reaches: sshd on 127.0.0.1 and 127.0.0.2, each with a home folder."""

import contextlib
import os
import pwd
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.hosts import debian
from tests.support.waiting import DEADLINE

NAMES = {"alpha": "127.0.0.1", "beta": "127.0.0.2"}


class Machine:
    """One sshd."""

    def __init__(self, folder: Path, name: str, address: str) -> None:
        self.name, self.address, self.folder = name, address, folder / name
        self.home = self.folder / "home"
        self.home.mkdir(parents=True)
        self.home.joinpath(".torchyard").mkdir()
        self.sshd = debian.program("sshd", "openssh-server")
        self.port = _free_port(address)
        _keygen(self.folder / "host_key")
        self.config = self.folder / "sshd_config"
        self.config.write_text(f"""\
ListenAddress {address}:{self.port}
HostKey {self.folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile {self.folder}/sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
SetEnv HOME={self.home}
""")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [self.sshd, "-D", "-e", "-f", str(self.config)]
        if os.getuid() == 0 and "sshd" not in {entry.pw_name for entry in pwd.getpwall()}:
            command = _with_user(self.folder, command)
        log = (self.folder / "sshd.log").open("ab")
        self.process = subprocess.Popen(
            command, stdout=log, stderr=log, env=debian.environment(), start_new_session=True
        )
        deadline = time.monotonic() + DEADLINE
        while not _listens(self.address, self.port):
            assert self.process.poll() is None, (self.folder / "sshd.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def cut(self) -> None:
        """End the server and every connection to it; what was started detached lives on."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pid in _sessions(self.port):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Machines:
    """All of them, and the configuration of the client."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        _keygen(folder / "user_key")
        self.by_name = {name: Machine(folder, name, address) for name, address in NAMES.items()}
        config = folder / "ssh_config"
        config.write_text("".join(f"""\
Host {machine.name}
  HostName {machine.address}
  Port {machine.port}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking accept-new
  LogLevel ERROR
""" for machine in self.by_name.values()))  # fmt: skip
        self.ssh = shlex.join(["ssh", "-F", str(config)])

    def __getitem__(self, name: str) -> Machine:
        return self.by_name[name]


@contextlib.contextmanager
def two_machines(folder: Path) -> Iterator[Machines]:
    """Start both; end them, and every connection, afterwards."""
    machines = Machines(folder)
    for machine in machines.by_name.values():
        machine.start()
    try:
        yield machines
    finally:
        for machine in machines.by_name.values():
            machine.cut()


def _keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _listens(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


def _with_user(folder: Path, command: list[str]) -> list[str]:
    """Return a command that sees a user `sshd`, as the server of root requires, in a mount namespace of its own."""
    users = folder / "passwd"
    users.write_text(Path("/etc/passwd").read_text() + "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n")
    script = f'mount --bind {users} /etc/passwd && mount -t tmpfs -o mode=755 none /run && mkdir /run/sshd && exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, "sh", *command]


def _sessions(port: int) -> list[int]:
    """Return the processes of sshd that hold connections of a port."""
    held = {
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{port:04X}")
    }
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "comm").read_text().startswith("sshd"):
                links = {str(link.readlink()) for link in (entry / "fd").iterdir()}
                if any(f"socket:[{inode}]" in links for inode in held):
                    found.append(int(entry.name))
    return found
