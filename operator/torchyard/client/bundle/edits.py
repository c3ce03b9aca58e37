"""Wait for an edit of code that a run uses: a cheap look at times and sizes, and a digest only where they changed."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from torchyard.client.backend import Notice
from torchyard.client.bundle.listing import listing
from torchyard.client.errors import TorchYardError

LOOK_SECONDS = 0.2

_Look = tuple[tuple[int, int, int] | None, ...]


class Edits:
    """The edits of a folder since a run was started with it.

    Args:
        folder: of the code.
        digest: of the code that runs.
        bundled: returns the digest of the code as it is now.
        notice: called with why edited code cannot travel; the wait continues then.

    Attributes:
        seen: whether the code differs from what runs.
    """

    def __init__(self, folder: Path, digest: str, notice: Notice, bundled: Callable[[], str]) -> None:
        self.seen = False
        self._folder, self._digest, self._notice, self._bundled = folder, digest, notice, bundled

    async def wait(self) -> None:
        """Return once the code has another digest, and its files were left alone for a moment."""
        while True:
            watched = await asyncio.to_thread(self._watched)
            before = await asyncio.to_thread(_look, watched)
            if await asyncio.to_thread(self._differs):
                self.seen = True
                return
            while (now := await asyncio.to_thread(_look, watched)) == before:  # noqa: ASYNC110 - no event tells of edits
                await asyncio.sleep(LOOK_SECONDS)
            while now != before:  # an editor writes a file in several steps
                await asyncio.sleep(LOOK_SECONDS)
                before, now = now, await asyncio.to_thread(_look, watched)

    def _watched(self) -> list[str]:
        """Return the files and their folders, whose times change with each new or deleted file."""
        try:
            paths = listing(self._folder).paths
        except TorchYardError:
            paths = []
        folders = {os.fspath(parent) for path in paths for parent in Path(path).parents}
        return [os.path.join(self._folder, each) for each in sorted({*paths, *folders, "."})]  # noqa: PTH118 - many

    def _differs(self) -> bool:
        try:
            return self._bundled() != self._digest
        except TorchYardError as error:
            self._notice(f"torchyard: {error}")
            return False


def _look(paths: list[str]) -> _Look:
    """Return what changes with any edit: the time of a change of the inode cannot be set back."""
    return tuple(_times(path) for path in paths)


def _times(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ctime_ns, found.st_size, found.st_ino
