"""Output of the command line: data on stdout, everything else on stderr, through one filter.

Names of files, messages of pods, lines of logs: all texts that a job can write may hold escape sequences.
Therefore the streams themselves pass only text, line breaks and tabs. A view that draws on a terminal gets the stream
below, and filters the text that it draws.
"""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TextIO

from torchyard.api.formatting import ESCAPES

if TYPE_CHECKING:
    from rich.console import Console

Format = Literal["json", "yaml"]

# C0 but tab and line feed, DEL, C1, and the marks that turn the direction of what follows.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def safe(text: str) -> str:
    """Return the text without escape sequences and control characters."""
    return text if text.isprintable() and text.isascii() else _CONTROLS.sub("", ESCAPES.sub("", text))


def json_line(value: Any) -> str:
    """Return a value of a typed record as JSON on one line, for a stream of objects."""
    from torchyard.api.json_text import encoded

    return escaped(encoded(value).decode())


def escaped(json_text: str) -> str:
    """Return JSON in which the characters that the filter takes out are written as escapes."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)


class SafeStream:
    """A text stream that filters what is written.

    Args:
        stream: gets the filtered text.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        """Write the safe part of a text; a character that the stream cannot encode becomes `?`."""
        kept = safe(text)
        try:
            self.unfiltered.write(kept)
        except UnicodeEncodeError:
            encoding = self.unfiltered.encoding or "utf-8"
            self.unfiltered.write(kept.encode(encoding, "replace").decode(encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def filter_streams() -> None:
    """Put the filter on standard output and standard error, once."""
    if not isinstance(sys.stdout, SafeStream):
        sys.stdout = SafeStream(sys.stdout)
    if not isinstance(sys.stderr, SafeStream):
        sys.stderr = SafeStream(sys.stderr)


def console(*, stderr: bool = False, **options: Any) -> "Console":
    """Return a console of rich whose colours, and the safe part of whose text, reach the terminal.

    Brackets and colons in a text are text: as markup, a metric or a parameter could raise, or be a link elsewhere.
    """
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        """Filters the text of every segment, but not the control sequences of rich itself."""

        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            """Render to segments."""
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(safe(segment.text), segment.style)

    stream = sys.stderr if stderr else sys.stdout
    return SafeConsole(file=getattr(stream, "unfiltered", stream), markup=False, emoji=False, **options)


def emit(document: Any, form: Format) -> None:
    """Write one document to stdout."""
    if form == "json":
        sys.stdout.write(escaped(json.dumps(document, indent=2, ensure_ascii=False)) + "\n")
        return
    from torchyard.api.yaml_text import dumped

    sys.stdout.write(dumped(document))


def say(text: str) -> None:
    """Print one line to stderr; ignore a closed pipe."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def flush_stderr() -> None:
    """Flush stderr before the program ends: Python itself would flush it into a broken pipe at its exit.

    That flush would change the exit code to 120.
    """
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
