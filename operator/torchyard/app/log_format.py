"""The operator's log: one line for each record, even if text of a job in it has line breaks."""

import logging
import re
from typing import Literal

from pythonjsonlogger.json import JsonFormatter

LogFormat = Literal["text", "json"]
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# C0, DEL, C1, other line breaks, and the marks that turn the direction of what follows.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BUT_LINES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def formatter(kind: LogFormat) -> logging.Formatter:
    """Return the formatter of `--log-format`.

    `json`: one object a line with `time`, `level`, `logger`, `message` and the fields of a decision
    (`reconcile.loop.executor`). JSON writes control characters as escapes.
    """
    if kind == "text":
        return SafeFormatter(FORMAT)
    names = {"asctime": "time", "levelname": "level", "name": "logger"}
    return JsonFormatter("%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=names, json_ensure_ascii=True)


class SafeFormatter(logging.Formatter):
    """Writes control characters as escapes: no text of a job begins a new line or controls a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- its name in logging
        """Format all but the traceback."""
        record.message = _CONTROLS.sub(_escape, record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; of a traceback the lines stay."""
        return _BUT_LINES.sub(_escape, super().format(record))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
