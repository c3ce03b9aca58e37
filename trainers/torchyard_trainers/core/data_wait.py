"""Time that steps wait for their data, added up where a workload gets it."""

import time
from typing import Self


class DataWait:
    """The time spent in `with session.data_wait:`, which encloses reading or creating the samples of a micro-batch."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = 0.0

    def __enter__(self) -> Self:
        self._since = time.perf_counter()
        return self

    def __exit__(self, *_error: object) -> None:
        self.seconds += time.perf_counter() - self._since
