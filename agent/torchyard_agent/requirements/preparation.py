"""The agent's side of requirements: the process that installs them for some code, and how it ended."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any, Dict, List, Mapping, Optional

from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.workers.reporting import ReportingProcess
from torchyard_agent.workers.zygote_client import python_code

_DIED = "the process that installs the requirements was killed, possibly for lack of memory"

logger = logging.getLogger(__name__)


class Requirements:
    """The packages of the code of this pod, for one digest of code at a time.

    Args:
        settings: of TORCHYARD_REQUIREMENTS, as docs/protocol.md describes them; None: the pod has none.
        code: root and mount of the code.

    Attributes:
        state: what is reported; empty: nothing has to be installed.
        code: exit code of the pod if the packages cannot be installed; 0: they can.
        message: why not.
        folder: of the packages; None: the image has all of them.
    """

    def __init__(self, settings: Optional[str], code: Mapping[str, Optional[str]]) -> None:
        self.state: Dict[str, Any] = {}
        self.code, self.message = 0, ""
        self.folder: Optional[str] = None
        self._settings: Optional[Dict[str, Any]] = json.loads(settings) if settings else None
        self._places = code
        self._process: Optional[ReportingProcess] = None
        self._digest = ""
        self._interpreter = sys.executable

    @property
    def running(self) -> bool:
        """Whether packages are still being installed, or cannot be."""
        return self._process is not None or self.code != 0

    @property
    def watched(self) -> List[int]:
        """The descriptor that becomes readable when `receive` has something to read."""
        return [] if self._process is None else self._process.watched

    def start(self, interpreter: str) -> None:
        """Install for the code that this pod was created with, by the Python of the workers."""
        self._interpreter = interpreter
        if self._settings is not None and self._settings.get("code"):
            self._install(str(self._settings["code"]), self._settings.get("wheels"))

    def ready(self, code: Optional[Mapping[str, Any]]) -> bool:
        """Return whether a round with this code may start; if its packages are not there, install them."""
        if not code or not code.get("requirements"):
            self.folder, self._digest, self.state = None, "", {}
            return True
        if self.running:
            return False
        if self._digest == code["digest"]:
            return True
        if self._settings is None:
            raise ValueError("command `run`: the code has requirements, and TORCHYARD_REQUIREMENTS is not set")
        self._install(str(code["digest"]), code.get("wheels"))
        return False

    def _install(self, digest: str, wheels: Optional[str]) -> None:
        assert self._settings is not None, "checked by the caller"
        self._digest, self.folder = digest, None
        self.state = {"state": "waiting"}
        settings = {"code": {"digest": digest, **self._places}, "root": self._settings["root"], "wheels": wheels}
        arguments = ["-u", "-c", python_code("requirements.install"), json.dumps(settings)]
        try:
            self._process = ReportingProcess(
                lambda pipe: [self._interpreter, *arguments, str(pipe)], {**os.environ, "PYTHONSAFEPATH": "1"}
            )
        except OSError as error:
            self._fail(ExitCode.REQUIREMENTS_FAILED, f"{self._interpreter} cannot be started: {error.strerror}")

    def receive(self) -> None:
        """Read what the process has reported, and its end."""
        process = self._process
        if process is None:
            return
        for message in process.receive():
            if "exit" not in message:
                self.state = message
                continue
            process.close()
            self._process = None
            if message["exit"]:
                self._fail(int(message["exit"]), f"requirements: {message['message']}")
                return
            self.folder = message["folder"] or None
            self.state = {**self.state, "state": "ready", "message": ""}
            logger.info("requirements: %s packages in %s", self.state.get("packages", 0), self.folder or "the image")
        if process.ended and self._process is not None:
            self._process = None
            self._fail(ExitCode.REQUIREMENTS_NOT_INSTALLED, f"requirements: {_DIED}")

    def _fail(self, code: int, message: str) -> None:
        self.code, self.message = code, message
        print(message, file=sys.stderr, flush=True)
