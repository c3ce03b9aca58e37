"""Histories that are read again and again: each reading parses only what was appended since the one before."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchyard.client.histories import Histories

MOST_SERIES = 256
"""Metrics that are kept in memory, about 150 KB each; beyond that, all but the newest file are forgotten."""


class Followed:
    """Histories by the path of their file, the least recently read one first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[threading.Lock, Histories]] = {}

    @contextmanager
    def read(self, path: Path) -> Iterator[Histories]:
        """Return the metrics of a file as it is now; they are the caller's for the duration of the block.

        Raises:
            TorchYardError: the file cannot be read.
        """
        with self._lock:
            entry = self._kept.pop(path, None) or (threading.Lock(), Histories(path))
            self._kept[path] = entry
        own, histories = entry
        with own:
            histories.follow()
            histories.save()
            yield histories
        self._forget()

    def _forget(self) -> None:
        with self._lock:
            total = sum(len(histories.series) for _, histories in self._kept.values())
            for path in list(self._kept)[:-1]:
                if total <= MOST_SERIES:
                    return
                total -= len(self._kept.pop(path)[1].series)


FOLLOWED = Followed()
"""Of this process."""
