"""A process below the agent that reports by lines of JSON, such as one that fetches inputs or installs packages."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence


class ReportingProcess:
    """A process that has the write end of a pipe.

    Args:
        command: called with the descriptor of the pipe; returns the argument vector.
        env: its environment.

    Attributes:
        ended: whether no more reports come.
    """

    def __init__(self, command: Callable[[int], Sequence[str]], env: Mapping[str, str]) -> None:
        self.ended = False
        self._pending = b""
        self._pipe: Optional[int]
        self._pipe, theirs = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            process = subprocess.Popen(command(theirs), env=env, stdin=subprocess.DEVNULL, pass_fds=[theirs])
        finally:
            os.close(theirs)
        process.returncode = 0  # reaped by the agent's own loop, not by Popen

    @property
    def watched(self) -> List[int]:
        """The descriptor that becomes readable when `receive` has something to read."""
        return [] if self._pipe is None else [self._pipe]

    def receive(self) -> List[Dict[str, Any]]:
        """Return the reports that arrived, without waiting."""
        messages: List[Dict[str, Any]] = []
        while self._pipe is not None:
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                self.close()
                break
            *lines, self._pending = (self._pending + data).split(b"\n")
            messages += map(json.loads, lines)
        return messages

    def close(self) -> None:
        """Read no more reports; the process is left to end by itself."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe, self.ended = None, True
