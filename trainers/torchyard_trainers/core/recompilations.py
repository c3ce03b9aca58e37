"""Warns when compiled code is no longer made for new shapes, which PyTorch only logs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.report import Reporter

_LOGGER, _MARK = "torch._dynamo.convert_frame", "recompile_limit"
_FIXED = (
    "parallelism.compile: blocks met more shapes than PyTorch compiles for, and run uncompiled for the others; set "
    "dynamicShapes: true and deterministic: false, or give samples one length, as packing does"
)
_DYNAMIC = (
    "parallelism.dynamicShapes: blocks were compiled as often as PyTorch allows, and run uncompiled where none of that "
    "code fits; leave compile out if it saves no time"
)


class _Handler(logging.Handler):
    def __init__(self, reporter: Reporter, text: str) -> None:
        super().__init__(logging.WARNING)
        self._reporter, self._text = reporter, text

    def emit(self, record: logging.LogRecord) -> None:
        if self._text and _MARK in record.getMessage():
            self._reporter.warn(self._text)
            self._text = ""


@contextmanager
def warn_of_many_shapes(reporter: Reporter, settings: Parallelism) -> Iterator[None]:
    """Add one warning to the report when PyTorch stops compiling for new shapes inside a `with` block."""
    logger, handler = logging.getLogger(_LOGGER), _Handler(reporter, _DYNAMIC if settings.dynamic_shapes else _FIXED)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
