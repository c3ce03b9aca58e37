"""Commands on another machine through the system's ssh client, or on this one.

The client of the system has what a user's `~/.ssh/config` asks for: jump hosts, agents, hardware keys, Kerberos,
certificates. `TORCHYARD_SSH` replaces the command, as GIT_SSH_COMMAND does for git. Commands share one connection.
"""

import os
import shlex
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from torchyard.client.errors import FAILED, INVALID, TorchYardError

CUT = 255
"""Exit code of ssh itself: the connection failed or was cut."""
CONNECT_SECONDS = 15
ALIVE_SECONDS = 15
MAX_MESSAGE = 300


class HostError(TorchYardError):
    """A command on a host failed.

    Attributes:
        returncode: its exit code; 255 if ssh could not carry it out.
        printed: what it wrote to stderr.
    """

    def __init__(self, sentence: str, fix: str, returncode: int, printed: str = "") -> None:
        super().__init__(sentence, fix, INVALID if returncode == INVALID else FAILED)
        self.returncode = returncode
        self.printed = printed


class Host:
    """A machine that commands run on.

    Args:
        name: of `~/.ssh/config`, or `[USER@]ADDRESS`; empty: this machine.
    """

    def __init__(self, name: str) -> None:
        if name.startswith("-") or any(not letter.isprintable() or letter.isspace() for letter in name):
            raise TorchYardError(f"--host {name!r} is not the name of a machine", "give a name that `ssh NAME` accepts")
        self.name = name

    @property
    def shown(self) -> str:
        """Return the name for messages."""
        return self.name or "this machine"

    def login(self, *command: str, terminal: bool = False) -> list[str]:
        """Return the command line that runs a command on the machine, with what its user's login shell sets."""
        if not self.name:
            return list(command)
        script = 'exec "${SHELL:-/bin/sh}" -lc \'exec "$@"\' sh "$@"'
        return self.words(script, *command, terminal=terminal)

    def words(self, script: str, *arguments: str, terminal: bool = False) -> list[str]:
        """Return the command line that runs a shell script on the machine.

        Args:
            script: for `sh`; its arguments are `$1`, `$2`, ...
            arguments: of the script.
            terminal: whether it gets a terminal.
        """
        there = ["sh", "-c", script, "sh", *arguments]
        if not self.name:
            return there
        batch = [] if sys.stdin is not None and sys.stdin.isatty() else ["-o", "BatchMode=yes"]
        options = [
            "-o", f"ConnectTimeout={CONNECT_SECONDS}", "-o", f"ServerAliveInterval={ALIVE_SECONDS}",
            "-o", "ServerAliveCountMax=3", *batch, *_shared_connection(), "-tt" if terminal else "-T",
        ]  # fmt: skip
        client = shlex.split(os.environ.get("TORCHYARD_SSH") or "ssh")
        return [*client, *options, "--", self.name, shlex.join(there)]

    def run(self, script: str, *arguments: str, stdin: bytes | IO[bytes] = b"") -> bytes:
        """Run a shell script and return its output.

        Raises:
            HostError: it fails, or the machine cannot be reached.
        """
        return self._output(self.words(script, *arguments), stdin)

    def run_in_login(self, *command: str, stdin: bytes) -> bytes:
        """Run a command with what the user's login shell sets, and return its output. Raises as `run`."""
        return self._output(self.login(*command), stdin)

    def _output(self, words: list[str], stdin: bytes | IO[bytes]) -> bytes:
        feed: dict[str, object] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        try:
            done = subprocess.run(words, capture_output=True, check=False, **feed)  # type: ignore[call-overload]
        except FileNotFoundError as error:
            raise HostError(f"{error.filename} is not installed", "install OpenSSH's client", CUT) from None
        if done.returncode != 0:
            raise self.failed(done.returncode, done.stderr.decode(errors="replace"))
        output: bytes = done.stdout
        return output

    def failed(self, code: int, printed: str) -> HostError:
        """Return the error of a command that failed."""
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        last = "".join(filter(str.isprintable, lines[-1]))[:MAX_MESSAGE] if lines else f"exit code {code}"
        if code == CUT and self.name:
            return HostError(f"{self.name} cannot be reached: {last}", f"`ssh {self.name} true` must work", code)
        return HostError(f"{self.shown}: {last.removeprefix('torchyard: ')}", "", code, printed)


def _shared_connection() -> list[str]:
    """Return the options that let later commands use the connection of the first; none where no folder is private."""
    folder = Path(tempfile.gettempdir()) / f"torchyard-ssh-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return []
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        return []
    return ["-o", "ControlMaster=auto", "-o", f"ControlPath={folder}/%C", "-o", "ControlPersist=60"]
