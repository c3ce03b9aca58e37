"""The one filter between text from outside and the terminal.

Names of files, messages of pods, lines of logs: whatever a job can write may hold sequences that a terminal obeys. So
the streams themselves let through text, line breaks and tabs. What draws on a terminal gets the stream below, and
filters the text that it draws.
"""

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

from torchyard.api.texts import ESCAPES

if TYPE_CHECKING:
    from rich.console import Console

# C0 but tab and line feed, DEL, C1, and the marks that turn the direction of what follows.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def safe(text: str) -> str:
    """Return the text without what a terminal would obey."""
    return text if text.isprintable() and text.isascii() else _CONTROLS.sub("", ESCAPES.sub("", text))


def escaped(json_text: str) -> str:
    """Return JSON in which the characters that the filter takes out are written as escapes."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)


class SafeStream:
    """A text stream through the filter.

    Args:
        stream: below it.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        """Write what is safe of a text; a character that the stream cannot encode becomes `?`."""
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
    """Return a console of rich whose colours reach the terminal, and of whose text what is safe."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        """Filters the text of every segment; what is not text are its own commands to the terminal."""

        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            """Render to segments."""
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(safe(segment.text), segment.style)

    stream = sys.stderr if stderr else sys.stdout
    return SafeConsole(file=getattr(stream, "unfiltered", stream), **options)
