"""The log of a controlling process, for debugging."""

import contextlib
import logging
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler

from torchyard.local.run import RunFolder

MAX_BYTES = 1_000_000  # a file; there are two at most
FILE = "controller.log"


class _Quiet(RotatingFileHandler):
    """Ignores errors of writing: the folder is gone or the disk is full."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- the name logging calls
        """Write nothing: stderr belongs to the live view."""


@contextlib.contextmanager
def log_to_run_folder(folder: RunFolder) -> Iterator[None]:
    """Keep warnings and tracebacks of this process in `controller.log` of the run instead of in the live view."""
    handler = _Quiet(
        folder.path / FILE, maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8", errors="backslashreplace", delay=True
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        with contextlib.suppress(OSError):  # what it still holds does not fit on a full disk
            handler.close()
