"""Chat templates of models, rendered in a process with limits.

A template is a program: Jinja's sandbox keeps it from Python's objects, and nothing keeps it from a loop or a text
without end. The template of our own tokenizer is rendered in this process.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.lm.channel import Channel, MessageError

SECONDS = 10.0  # of CPU, for one conversation
MEMORY_BYTES = 1 << 30  # besides what the process has before it renders
ANSWER_BYTES = 16 << 20
_WAIT_SECONDS = 300.0  # on a machine that is too busy to give the process its 10 s


class Rendered(NamedTuple):
    """A conversation as text, and where in it the template says that the model speaks."""

    text: str
    spans: list[tuple[int, int]]


class TemplateError(ValueError):
    """The template does not take this conversation."""


class TemplateProcess:
    """Renders with any template; the process starts with the first conversation, in each process that renders."""

    def __init__(self, seconds: float = SECONDS) -> None:
        """Limit the time of the processor for one conversation."""
        self._seconds = seconds
        self._pid = 0
        self._process: subprocess.Popen[bytes]
        self._channel: Channel

    def render(self, arguments: Mapping[str, Any]) -> Rendered:
        """Return a conversation as text.

        Args:
            arguments: of transformers' `render_jinja_template`, with one conversation.

        Raises:
            TemplateError: the template does not take this conversation.
            ConfigError: the template needs more time, memory or text than allowed.
        """
        if self._pid != os.getpid():  # a forked reader of data starts its own
            self._start()
        try:
            self._channel.send(dict(arguments), _WAIT_SECONDS)
            kind, value = self._channel.receive_answer(
                _WAIT_SECONDS, ANSWER_BYTES, lambda: self._process.poll() is None
            )
        except (EOFError, TimeoutError, OSError, MessageError) as error:
            self._pid = 0
            self._end()
            raise ConfigError(
                f"trainer.params.pretrained: the chat template of the model takes more than {self._seconds:g} s, "
                f"{MEMORY_BYTES >> 30} GiB or {ANSWER_BYTES >> 20} MiB of text for one conversation; correct "
                "chat_template.jinja in its folder, or use records with prompt and completion"
            ) from error
        if kind == "error":
            raise TemplateError(value)
        text, spans = value
        return Rendered(text, [(begin, end) for begin, end in spans])

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # -P: what lies in the current folder is not imported.
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "torchyard_trainers.lm.chat.templates",
                str(theirs.fileno()),
                str(self._seconds),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        self._channel, self._pid = Channel(ours), os.getpid()
        self._end = weakref.finalize(self, _end, self._process, self._channel, self._pid)


def _end(process: "subprocess.Popen[bytes]", channel: Channel, owner: int) -> None:
    channel.close()
    if owner == os.getpid():  # a forked process has the objects of its parent
        process.kill()
        process.wait()


def main(channel: int, seconds: float) -> None:
    """Render conversations until the other side closes the channel.

    Args:
        channel: file descriptor of a socket to the trainer.
        seconds: of the processor, for one conversation.
    """
    os.set_inheritable(channel, False)
    trainer = Channel(socket.socket(fileno=channel))
    from transformers.utils.chat_template_utils import render_jinja_template

    _limit_memory()
    with suppress(EOFError, ConnectionError):  # the trainer has ended, or was killed
        while True:
            request = trainer.receive()
            signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process, also inside a call of C
            try:
                texts, spans = render_jinja_template(**request)
                answer: tuple[str, Any] = ("result", (texts[0], spans[0] if spans else []))
            except Exception as error:  # noqa: BLE001 - a template raises anything
                answer = ("error", f"{type(error).__name__}: {error}"[:1000])
            signal.setitimer(signal.ITIMER_PROF, 0)
            trainer.send(answer)


def _limit_memory() -> None:
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        taken = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES, taken + MEMORY_BYTES))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
