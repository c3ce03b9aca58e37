"""The agent's side of its zygote: start it, request launchers, receive their exit statuses."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from torchyard_agent.workers.command import Plain, Torchrun

logger = logging.getLogger(__name__)

_BY_OPTIMIZERS = "torch._dynamo"
"""What the first step of an optimizer imports, which takes as long as to import torch."""
_DIED = "the zygote died"
_MOST = 3  # zygotes that an agent starts before it gives up

INHERITED = "TORCHYARD_ZYGOTE"
"""In the environment of an agent that was started with a zygote (see `template.py`): descriptor and process id."""

# Where this package was imported from: the zipapp, or the folder above it.
LOCATION = str(Path(__file__).parents[2])


def python_code(module: str) -> str:
    """Return code for `python -c` that runs `main()` of a module of this package, also from the zipapp."""
    # The first entry is the working directory, "", but for PYTHONSAFEPATH.
    path = f"sys.path[: not sys.path[0]] = [{LOCATION!r}]"
    return f"import sys; {path}; from torchyard_agent.{module} import main; main()"


class Zygote:
    """One zygote process.

    Attributes:
        state: `starting`, `ready`, or `failed` with a `reason`.
        importing: the module that it imports while `starting`.
        since: when that import began, monotonic seconds.
        pid: its process id.
        socket: becomes readable when `receive` has messages.
    """

    def __init__(self, interpreter: str, env: Dict[str, str], preload: Tuple[str, ...]) -> None:
        self.state = "starting"
        self.reason = ""
        self.importing = ""
        self.since = time.monotonic()
        self.socket, theirs = socket.socketpair()
        self._pending = b""
        arguments = [str(theirs.fileno()), str(os.getpid()), *preload]
        try:
            self._process: Optional[subprocess.Popen[bytes]] = subprocess.Popen(
                [interpreter, "-u", "-c", python_code("workers.zygote"), *arguments],
                env=env,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
            self.pid = self._process.pid
        except OSError as error:
            self._process = None
            self.pid = 0
            self.state, self.reason = "failed", f"{interpreter}: {error.strerror}"
        theirs.close()

    @classmethod
    def inherited(
        cls, place: Tuple[int, int], interpreter: str, env: Dict[str, str], preload: Tuple[str, ...]
    ) -> Zygote:
        """Use a zygote that was started with this agent; `place` is its descriptor and process id.

        It becomes ready if this agent would have started an equal one; otherwise it ends.
        """
        self = cls.__new__(cls)
        descriptor, self.pid = place
        self.state, self.reason, self.importing, self._pending = "starting", "", "torch", b""
        self.since = time.monotonic()
        os.set_inheritable(descriptor, False)
        self.socket = socket.socket(fileno=descriptor)
        self._process = None
        wanted = {"interpreter": interpreter, "preload": preload, "env": env}
        try:
            self.socket.sendall(json.dumps(wanted).encode() + b"\n")
        except OSError:
            self.state, self.reason = "failed", _DIED
        return self

    def ask(self, spec: Path) -> None:
        """Request a launcher for the round in the file `spec`; the answer is `started` or the end of the zygote.

        Raises:
            OSError: the zygote is gone.
        """
        self._say({"spec": str(spec)})

    def import_later(self, module: str) -> None:
        """Have `module` imported for later rounds; one that is requested during the import starts after it.

        Raises:
            OSError: the zygote is gone.
        """
        self._say({"import": module})

    def _say(self, request: Dict[str, Any]) -> None:
        self.socket.sendall(json.dumps(request).encode() + b"\n")

    def receive(self) -> List[Dict[str, Any]]:
        """Return the messages that arrived; call when `socket` is readable. A zygote that died becomes `failed`."""
        try:
            data = self.socket.recv(65536)
        except OSError:
            data = b""
        if not data:
            if self.state != "failed":
                self.state, self.reason = "failed", _DIED
            return []
        *lines, self._pending = (self._pending + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            if "ready" in message:
                self.state = "ready"
            elif "importing" in message:
                self.importing = message["importing"]
                self.since = time.monotonic()
            elif "failed" in message:
                self.state, self.reason = "failed", message["failed"]
        return messages

    def close(self, status: int = 0) -> None:
        """Forget the process; it ends when it sees its socket closed. `status`: how it ended, if it was reaped."""
        self.socket.close()
        if self._process is not None:
            self._process.returncode = status  # reaped by the agent's own loop, not by Popen
            self._process = None


class WarmStart:
    """Keeps a zygote running; sets a notice if that is not possible.

    Attributes:
        zygote: the current one, `starting` or `ready`; None: rounds start cold.
        notice: why warm start is off for the rest of the pod's life; None: it is not.
    """

    def __init__(
        self,
        kind: Torchrun | Plain,
        env: Dict[str, str],
        preload: Tuple[str, ...],
        *,
        wanted: bool,
        inherited: Optional[Tuple[int, int]] = None,
    ) -> None:
        self.zygote: Optional[Zygote] = None
        self.notice: Optional[str] = None
        self._kind, self._env, self._preload = kind, env, preload
        self._started = 0
        self._asked: Optional[Zygote] = None  # to import what optimizers import
        if inherited is not None and wanted and isinstance(kind, Torchrun):
            self.zygote = Zygote.inherited(inherited, kind.interpreter, env, preload)
            if self.zygote.state == "failed":
                self.failed(self.zygote.reason)
            return
        if inherited is not None:
            os.close(inherited[0])  # it ends then
        if wanted:
            self._start()

    def _start(self) -> None:
        if isinstance(self._kind, Torchrun):
            self._started += 1
            self.zygote = Zygote(self._kind.interpreter, self._env, self._preload)
            if self.zygote.state == "failed":
                self.failed(self.zygote.reason)

    @property
    def starting(self) -> bool:
        """Whether torch is being imported, so that a round should wait."""
        return self.zygote is not None and self.zygote.state == "starting"

    @property
    def ready(self) -> bool:
        """Whether the next round starts warm."""
        return self.zygote is not None and self.zygote.state == "ready"

    def zygote_for(self, kind: Torchrun | Plain) -> Optional[Zygote]:
        """Return the zygote if it can start a round of this kind; None: the round starts cold."""
        same = (
            isinstance(kind, Torchrun)
            and isinstance(self._kind, Torchrun)
            and kind.interpreter == self._kind.interpreter
        )
        return self.zygote if same else None

    def pids(self) -> List[int]:
        """Return the process id of the zygote, which a clean-up must not kill."""
        return [] if self.zygote is None else [self.zygote.pid]

    def prepare_for_optimizers(self, reports: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """Have the zygote import what an optimizer's first step imports, if workers have made such a step.

        It does so once, while the workers train. Programs without an optimizer never pay for it.

        Args:
            reports: returns the newest reports of the workers; called until one of them shows such a step.
        """
        if self.zygote is None or self.zygote is self._asked:
            return
        if not any("device" in report for report in reports()):
            return  # a device is reported from the first step of an optimizer on
        self._asked = self.zygote
        with contextlib.suppress(OSError):  # it died, as `receive` finds out
            self.zygote.import_later(_BY_OPTIMIZERS)

    def failed(self, reason: str) -> None:
        """Handle the end of the zygote: start another one if it was killed; give up if its imports fail.

        An inherited zygote, which may have been made for another environment, is replaced by one that the agent starts.
        """
        if self.zygote is None:
            return
        logger.log(logging.WARNING if self._started else logging.INFO, "zygote %d: %s", self.zygote.pid, reason)
        self.zygote.close()
        self.zygote = None
        killed = reason == _DIED or reason.startswith("killed by")
        if (killed or self._started == 0) and self._started < _MOST:
            self._start()
        else:
            self.notice = f"warm start is off: {reason}"

    def give_up_after(self, seconds: float) -> None:
        """Kill a zygote that imports one module for longer: it may hang (a dead file server), and rounds wait."""
        if self.zygote is None or not self.starting or time.monotonic() - self.zygote.since < seconds:
            return
        os.kill(self.zygote.pid, signal.SIGKILL)
        self.failed(f"importing {self.zygote.importing} took longer than {seconds:g} s (TORCHYARD_WARM_SECONDS)")

    def close(self) -> None:
        """End the zygote."""
        if self.zygote is not None:
            self.zygote.close()
