"""The view where there is no terminal: one line a change of state, a warning, and some seconds of progress."""

import sys
from typing import TextIO

from torchyard.api.formatting import clean, clock
from torchyard.cli.views.snapshot import Picture, progress_words
from torchyard.local.run import Event

PROGRESS_EVERY = 10.0  # seconds between lines while nothing but the step changes


class PlainView:
    """Writes lines to a stream (stderr unless given); says each fact once.

    How a job ended is left to the lines after the view.
    """

    def __init__(self, stream: TextIO | None = None, every: float = PROGRESS_EVERY) -> None:
        self.stream = stream or sys.stderr
        self.every = every
        self.shown: tuple[str, int, str] | None = None
        self.notice = ""
        self.last_line = float("-inf")
        self.last_words: list[str] = []
        self.warned: set[Event] = set()
        self.told = ""  # the newest warning
        self.message = ""  # of the status, as it was last printed

    def show(self, picture: Picture) -> None:
        """Print what is new in `picture`."""
        status = picture.job.status
        over = status.state.terminal
        for event in picture.events:
            if event.type == "Warning" and event not in self.warned:
                self.warned.add(event)
                if over and event.message == status.message:
                    continue
                self.told = picture.sentence(event.message)
                self.say(event.unix or picture.now, f"Warning {clean(event.reason)}: {self.told}")
        if picture.notice and picture.notice != self.notice:
            self.notice = picture.notice
            self.say(picture.now, picture.notice)
        if not status.state:
            return
        moved = (status.state, status.round, status.reason)
        words, message = progress_words(picture.job), picture.sentence(status.message)
        if moved != self.shown:
            self.shown, self.message = moved, message
            self.progress(picture, words, "" if over or (message and message in self.told) else message)
        elif picture.now - self.last_line >= self.every and (words != self.last_words or message != self.message):
            news, self.message = ("" if message == self.message else message), message
            self.progress(picture, words, news)

    def progress(self, picture: Picture, words: list[str], message: str = "") -> None:
        """One line: state, round, how far, how fast."""
        status = picture.job.status
        self.last_line, self.last_words = picture.now, words
        head = f"{status.state} round {status.round}" if status.round else str(status.state)
        line = " ".join([head, *words])
        self.say(picture.now, f"{line}: {message}" if message else line)

    def say(self, now: float, text: str) -> None:
        """One line with the time of day."""
        print(f"{clock(now)} {text}", file=self.stream, flush=True)

    def close(self, picture: Picture | None) -> None:
        """Nothing is left to draw: the last state has been printed."""
