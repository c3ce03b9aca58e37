"""A run or a sweep on this terminal, redrawn in the background. That the terminal is closed does not concern it."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

from torchyard.cli.views.snapshot import Snapshot

REDRAW_SECONDS = 0.25

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class View(Protocol[T_contra]):
    """What shows a run or a sweep."""

    def show(self, snapshot: T_contra) -> None:
        """Show it as it is now."""

    def close(self, snapshot: T_contra | None) -> None:
        """Show it for the last time and release the terminal."""


@contextlib.asynccontextmanager
async def drawn(look: Callable[[], T | None], view: View[T]) -> AsyncIterator[None]:
    """Draw what `look` returns (None: nothing yet) until the block is left, and then once more."""
    drawing = asyncio.create_task(_redraw(view, look))
    try:
        yield
    finally:
        drawing.cancel()
        await asyncio.gather(drawing, return_exceptions=True)
        last = look()
        with contextlib.suppress(OSError):  # the terminal is closed, which does not concern the run
            if last is not None:
                view.show(last)
            view.close(last)


async def _redraw(view: View[T], look: Callable[[], T | None]) -> None:
    while True:
        snapshot = look()
        if snapshot is not None:
            with contextlib.suppress(OSError):
                view.show(snapshot)
        await asyncio.sleep(REDRAW_SECONDS)


def view_for_this_terminal() -> View[Snapshot]:
    """Redrawn in place on a terminal, lines elsewhere."""
    from torchyard.cli.views.snapshot import PlainView

    if not is_live():
        return PlainView()
    from torchyard.cli.output import console
    from torchyard.cli.views.live import LiveView, render

    return LiveView(console(stderr=True, highlight=False), render)


def is_live() -> bool:
    """Return whether the view is redrawn in place: stderr is a terminal that can do it."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}
