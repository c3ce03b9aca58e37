"""A run on hosts: start it, call TorchYard there, follow its output, and fetch its files."""

import asyncio
import json
import posixpath
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torchyard.client.artifacts import Allowance, Fetch
from torchyard.client.backend import Notice
from torchyard.client.hosts.records import HostRun, Member
from torchyard.client.hosts.ssh import CUT, Host

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
HEADERS_BYTES = 256 * 2**20
"""Of an archive with as many entries as are allowed."""


class RemoteTorchYard:
    """TorchYard on one host of a run."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.host = Host(member.host)

    def words(self, *arguments: str, terminal: bool = False) -> list[str]:
        """Return the command line, for this machine, of a `torchyard` command on the host."""
        return self.host.login("env", *self._home, self.member.torchyard, *arguments, terminal=terminal)

    def asked(self, request: str, *arguments: str, terminal: bool = False) -> list[str]:
        """Return the command line, for this machine, of a request to `torchyard.cli.hosted`."""
        return self.host.login("env", *self._hosted, request, *arguments, terminal=terminal)

    def ask(self, request: str, *arguments: str, document: Any = None, notice: Notice | None = None) -> bytes:
        """Carry out a request on the host and return its output.

        Raises:
            TorchYardError: with the sentence of the host, or since it cannot be reached.
        """
        data = b"" if document is None else json.dumps(document).encode()
        done = subprocess.run(self.asked(request, *arguments), input=data, capture_output=True, check=False)
        printed = done.stderr.decode(errors="replace")
        if done.returncode != 0:
            raise self.host.failed(done.returncode, printed)
        if notice is not None:
            for line in printed.splitlines():
                notice(line)
        return done.stdout

    @property
    def _home(self) -> tuple[str, ...]:
        return (f"TORCHYARD_HOME={self.member.home}",)

    @property
    def _hosted(self) -> tuple[str, ...]:
        python = posixpath.join(posixpath.dirname(self.member.torchyard), "python")
        return (*self._home, python, "-P", "-m", "torchyard.cli.hosted")


def controller_of(run: HostRun) -> RemoteTorchYard:
    """Return TorchYard on the host that has the controller."""
    return RemoteTorchYard(run.members[0])


def follow(run: HostRun, *, quiet: bool, notice: Notice) -> int:
    """Show a run until it is over, through cut connections; return its exit code.

    Raises:
        KeyboardInterrupt: Ctrl-C; the run continues.
    """
    remote, places, pause = controller_of(run), dict[str, list[int]](), FIRST_PAUSE
    while True:
        begun = time.monotonic()
        code = _attached(remote, run.name, places, quiet=quiet)
        if code != CUT:
            return code
        pause = FIRST_PAUSE if time.monotonic() - begun > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
        notice(f"torchyard: the connection to {remote.host.shown} is cut; {run.name} continues there; tries again")
        time.sleep(pause)


def _attached(remote: RemoteTorchYard, name: str, places: dict[str, list[int]], *, quiet: bool) -> int:
    """Show the run for as long as one connection lasts; note the place in each log."""
    if sys.stdout.isatty() and sys.stdin.isatty() and not quiet:
        return subprocess.run(remote.asked("attach", name, terminal=True), check=False).returncode
    words = remote.asked("attach", name, json.dumps(places))
    several = False
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                frame = json.loads(line)
                several = bool(frame["several"])
                log, place, text = str(frame["log"]), list(map(int, frame["place"])), str(frame["text"])
            except (ValueError, KeyError, TypeError):
                continue
            places[log] = place
            if not quiet:
                head = f"[rank {Path(log).stem.removeprefix('rank-')}] " if several else ""
                sys.stdout.write("".join(f"{head}{each}\n" for each in text.removesuffix("\n").split("\n")))
                sys.stdout.flush()
        return process.wait()


def fetch_of(run: HostRun) -> Fetch:
    """Return the function that copies files of the run's checkpoint folder to this machine."""
    from torchyard.client.remote.unpack import unpack

    remote = controller_of(run)

    async def fetch(name: str, wanted: Path, to: Path, allowance: Allowance) -> None:
        await asyncio.to_thread(copied, name, wanted, to, allowance)

    def copied(name: str, wanted: Path, to: Path, allowance: Allowance) -> None:
        with tempfile.NamedTemporaryFile(dir=to.parent) as archive, tempfile.TemporaryFile() as errors:
            words = remote.asked("send", name, wanted.as_posix())
            with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors) as process:
                assert process.stdout is not None
                left = allowance.bytes + HEADERS_BYTES
                while part := process.stdout.read(2**20):
                    archive.write(part)
                    left -= len(part)
                    if left < 0:
                        process.kill()
                        allowance.take(allowance.bytes + 1)
                code = process.wait()
            if code != 0:
                errors.seek(0)
                raise remote.host.failed(code, errors.read().decode(errors="replace"))
            archive.flush()
            unpack(Path(archive.name), to, allowance)

    return fetch
