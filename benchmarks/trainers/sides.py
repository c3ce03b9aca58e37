"""Programs under measurement, each in a process of its own: a line asks for work, a line of JSON answers."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from typing import Any


def processor_seconds() -> float:
    """Return the processor time of this process and its children so far, from inside the program."""
    import psutil

    mine = psutil.Process()
    times = [mine.cpu_times(), *(each.cpu_times() for each in mine.children(recursive=True))]
    ended = times[0].children_user + times[0].children_system
    return ended + sum(each.user + each.system for each in times)


def say(answer: dict[str, Any]) -> None:
    """Answer, from inside the program."""
    sys.__stdout__.write(json.dumps(answer) + "\n")
    sys.__stdout__.flush()


class Side:
    """One of the programs that are compared, with one thread unless OMP_NUM_THREADS says otherwise."""

    def __init__(self, command: list[Any]) -> None:
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the program
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )
        self.ready = self._hear()

    def ask(self, line: str) -> dict[str, Any]:
        """Run it, and return its answer."""
        with contextlib.suppress(BrokenPipeError):  # it has ended: what it complained about is raised
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._hear()

    def close(self) -> None:
        """Wait for its end."""
        self._process.stdin.close()
        self._process.wait(60)

    def _hear(self) -> dict[str, Any]:
        for line in self._process.stdout:
            if line.startswith('{"'):
                return json.loads(line)
        code = self._process.wait()
        self._complaints.seek(0)
        raise RuntimeError(f"{self._process.args} ended with {code}:\n{self._complaints.read()[-3000:]}")
