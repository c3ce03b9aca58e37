"""The agent's hold on its zygote: start it, ask it for a launcher, hear how that ended."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

# Where this package was imported from: the zipapp, or the folder above it.
LOCATION = str(Path(__file__).parent.parent)


def python_code(module: str) -> str:
    """Code for `python -c` that runs `main()` of a module of this package, from the zipapp too."""
    return f"import sys; sys.path[:1] = [{LOCATION!r}]; from torchyard_agent.{module} import main; main()"


class Zygote:
    """One zygote process.

    Attributes:
        state: `starting`, `ready`, or `failed` with a `reason`.
        pid: its process id.
        socket: becomes readable when `receive` has something to tell.
    """

    def __init__(self, interpreter: str, env: Dict[str, str], preload: Tuple[str, ...]) -> None:
        self.state = "starting"
        self.reason = ""
        self.socket, theirs = socket.socketpair()
        self._pending = b""
        arguments = [str(theirs.fileno()), str(os.getpid()), *preload]
        try:
            self._process: Optional[subprocess.Popen[bytes]] = subprocess.Popen(
                [interpreter, "-u", "-c", python_code("zygote"), *arguments], env=env, pass_fds=[theirs.fileno()]
            )
            self.pid = self._process.pid
        except OSError as error:
            self._process = None
            self.pid = 0
            self.state, self.reason = "failed", f"{interpreter}: {error.strerror}"
        theirs.close()

    def ask(self, spec: Path) -> None:
        """Ask for a launcher that runs the round in the file `spec`; `started` or an end will follow.

        Raises:
            OSError: the zygote is gone.
        """
        self.socket.sendall(json.dumps({"spec": str(spec)}).encode() + b"\n")

    def receive(self) -> List[Dict[str, Any]]:
        """Messages that arrived; call when `socket` is readable. A zygote that died becomes `failed`."""
        try:
            data = self.socket.recv(65536)
        except OSError:
            data = b""
        if not data:
            if self.state != "failed":
                self.state, self.reason = "failed", "the zygote died"
            return []
        *lines, self._pending = (self._pending + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            if "ready" in message:
                self.state = "ready"
            elif "failed" in message:
                self.state, self.reason = "failed", message["failed"]
        return messages

    def close(self, status: int = 0) -> None:
        """Forget the process; it ends when it sees its socket closed. `status`: how it ended, if it was reaped."""
        self.socket.close()
        if self._process is not None:
            self._process.returncode = status  # reaped by the agent's own loop, not by Popen
            self._process = None
