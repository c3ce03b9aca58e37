"""The agent's side of fetching code and inputs: the process that fetches, what it reports, and how it ended."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.files import write_json
from torchyard_agent.inputs import code
from torchyard_agent.inputs.fetch import VARIABLE, names
from torchyard_agent.inputs.source import read
from torchyard_agent.workers.recording import INPUTS_FILE
from torchyard_agent.workers.reporting import ReportingProcess
from torchyard_agent.workers.zygote_client import python_code

_DIED = "the process that fetches code and inputs was killed, possibly for lack of memory"

logger = logging.getLogger(__name__)


class Preparation:
    """The code and inputs of this pod that are fetched. Without any, it is over at once.

    Args:
        source_of_code: where the code comes from; None: it is sent, or in the image.
        settings: of the inputs; None: there are none.
        run_dir: in which the revisions of the inputs are recorded.

    Attributes:
        states: the state of each, as docs/protocol.md describes it.
        code: exit code of the pod if they cannot be had; 0: they can.
        message: why not.
    """

    def __init__(self, source_of_code: Optional[str], settings: Optional[str], run_dir: Path) -> None:
        self.states: List[Dict[str, Any]] = []
        self.code, self.message = 0, ""
        given = {code.VARIABLE: source_of_code, VARIABLE: settings}
        self._given = {name: text for name, text in given.items() if text is not None}
        self._settings, self._run_dir = settings, run_dir
        self._process: Optional[ReportingProcess] = None
        self._ended = not self._given

    @property
    def running(self) -> bool:
        """Whether inputs are still being fetched, or cannot be had."""
        return not self._ended or self.code != 0

    @property
    def watched(self) -> List[int]:
        """The descriptor that becomes readable when `receive` has something to read."""
        return [] if self._process is None else self._process.watched

    def start(self, env: Mapping[str, str]) -> None:
        """Start the process that fetches."""
        if self._ended:
            return
        known = names(self._given.get(code.VARIABLE), self._settings)
        self.states = [{"name": name, "state": "waiting"} for name in known]
        # A program that must not use the hub by itself gets its model this way.
        own = {name: value for name, value in env.items() if name not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
        quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        self._process = ReportingProcess(
            lambda pipe: [sys.executable, "-u", "-c", python_code("inputs.fetch"), str(pipe)],
            {**own, **quiet, **self._given},
        )

    def receive(self) -> None:
        """Read what the process has reported, and its end."""
        for message in self._process.receive() if self._process is not None else ():
            self._take(message)
        if self._process is not None and self._process.ended and not self._ended:
            of_code = any(each["name"] == code.NAME and each["state"] != "ready" for each in self.states)
            self._end(ExitCode.CODE_NOT_FETCHED if of_code else ExitCode.INPUT_NOT_FETCHED, _DIED)

    def _take(self, message: Dict[str, Any]) -> None:
        self.states = message.get("inputs", self.states)
        if "exit" in message:
            self._end(int(message["exit"]), str(message["message"]))

    def _end(self, code: int, message: str) -> None:
        self._ended, self.code, self.message = True, code, message
        logger.info("inputs: %s", ", ".join(f"{each['name']} {each['state']}" for each in self.states))
        if code:
            print(message, file=sys.stderr, flush=True)
        else:
            self._record()

    def _record(self) -> None:
        if self._settings is None:
            return
        sources = {each.name: each.shown for each in read(self._settings)}
        revisions = {each["name"]: each["revision"] for each in self.states}
        found = {name: {"from": shown, "revision": revisions[name]} for name, shown in sources.items()}
        write_json(self._run_dir / INPUTS_FILE, found)
