"""The operator's log: one line for each record, even if text of a job in it has line breaks."""

import logging
import re
import sys
import threading
from typing import Any, Literal

from pythonjsonlogger.json import JsonFormatter

LogFormat = Literal["text", "json"]
_log = logging.getLogger(__name__)

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# C0, DEL, C1, other line breaks, and the marks that turn the direction of what follows.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# All keys of a JSON line; other attributes of a record, such as those of kopf's, are left out.
_KEYS = frozenset(
    {"time", "level", "logger", "message", "exc_info", "stack_info"}
    | {"job", "sweep", "uid", "round", "state", "reason", "actions", "failed"}
)
_BUT_LINES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def formatter(kind: LogFormat) -> logging.Formatter:
    """Return the formatter of `--log-format`.

    `json`: one object per line with `time`, `level`, `logger`, `message` and the fields of a decision
    (`reconcile.loop.executor`, `app.sweep_controller`). JSON writes control characters as escapes.
    """
    if kind == "text":
        return SafeFormatter(FORMAT)
    names = {"asctime": "time", "levelname": "level", "name": "logger"}
    return _JsonLines("%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=names, json_ensure_ascii=True)


def log_everything(kind: LogFormat) -> None:
    """Write the log to stderr in this format, with warnings and all exceptions that no code handles."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(kind))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.captureWarnings(True)
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_end_of_thread


def _log_unraisable(found: "sys.UnraisableHookArgs") -> None:
    said = found.err_msg or "an exception is ignored"
    _log.error("%s: %r", said, found.object, exc_info=found.exc_value)


def _log_end_of_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_type is not SystemExit:
        name = found.thread.name if found.thread is not None else "unknown"
        _log.error("thread %s ended with an exception", name, exc_info=found.exc_value)


class _JsonLines(JsonFormatter):
    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in log_data.items() if key in _KEYS}


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
