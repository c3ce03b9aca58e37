"""Write the curves of a program that writes none: `metrics.jsonl` and TensorBoard event files in its checkpoint folder.

The same files as those of a built-in workload, so that `fetch`, plots and TensorBoard need not know which one it was.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO, Callable, Deque, Dict, List, Optional, Tuple

from torchyard_agent.telemetry.curve_index import CurveIndex, StaleError
from torchyard_agent.telemetry.readings import METRICS, NON_FINITE, as_json, values_of
from torchyard_agent.telemetry.reports import from_patterns

POINTS = 100_000  # that wait for a slow volume; more are dropped
_CLOSE_SECONDS = 5.0

Point = Tuple[int, float, Dict[str, float]]  # step, unix seconds, values

logger = logging.getLogger(__name__)


class Axis:
    """The steps of one round's points. A program may print its step beside a metric, on another line, or nowhere."""

    def __init__(self) -> None:
        self._stated: Optional[int] = None
        self._last = 0
        self._reported: Any = None

    def of_matches(self, matches: List[Dict[str, float]], counted: int) -> List[Tuple[int, Dict[str, float]]]:
        """Return step and values of each matching line.

        Args:
            matches: values of the named groups, a dictionary a line.
            counted: optimizer steps that were counted, up to a second ago. Where the program never prints a step, a
                line is one step beyond the line before it, and never behind the count.
        """
        points = []
        for match in matches:
            fields = from_patterns(match)
            self._stated = fields.get("step", self._stated)
            if "metrics" in fields:
                self._last = max(self._last + 1, counted) if self._stated is None else self._stated
                points.append((self._last, fields["metrics"]))
        return points

    def of_report(self, report: Dict[str, Any]) -> List[Tuple[int, Dict[str, float]]]:
        """Return step and metrics of a report, nothing if they are unchanged."""
        values = values_of(report)
        latest = (report["step"], report.get(METRICS), report.get(NON_FINITE))  # not the values: NaN differs from NaN
        fresh = latest != self._reported and bool(values)
        self._reported = latest
        return [(report["step"], values)] if fresh else []


class Curves:
    """Appends points in a thread: a volume that hangs must not keep the agent from its commands."""

    def __init__(self, folder: Path, *, tensorboard: bool) -> None:
        """Write below `folder`, which is created with the first point; `tensorboard`: event files as well."""
        self._folder, self._tensorboard = folder, tensorboard
        self._changed = threading.Condition()
        self._waiting: Deque[Point] = deque(maxlen=POINTS)
        self._closed = False
        self._thread: Optional[threading.Thread] = None
        self._index: Optional[CurveIndex] = None

    def add(self, points: List[Tuple[int, Dict[str, float]]]) -> None:
        """Append `points`, each a step and its values."""
        if not points or self._closed:
            return
        now = time.time()
        with self._changed:
            self._waiting.extend((step, now, values) for step, values in points)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="curves", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write the queued points, for at most a few seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            self._write_until_closed()
        except OSError as error:
            self._closed = True
            logger.warning("curves in %s: %s; no more points of this round are stored", self._folder, error.strerror)

    def _write_until_closed(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "metrics.jsonl"
        torn = _is_torn(path)
        events: Optional[BinaryIO] = None
        with path.open("a", encoding="utf-8") as lines:
            if torn:  # by a full disk or a lost node; the next line would become a part of it
                lines.write("\n")
                lines.flush()
            self._open_index(path)
            try:
                while True:
                    points = self._take()
                    if not points:
                        return
                    lines.writelines(_line(step, values) for step, _, values in points)
                    lines.flush()
                    self._add_to_index(points, lines.tell())
                    if self._tensorboard:
                        events = events or _event_file(self._folder / "tensorboard")
                        events.write(b"".join(record(event(*point)) for point in points))
                        events.flush()
            finally:
                if events is not None:
                    events.close()
                self._with_index(lambda index: index.save())

    def _open_index(self, path: Path) -> None:
        try:
            self._index = CurveIndex(path)
        except (StaleError, OSError) as error:
            logger.debug("curves in %s: no index is written: %s", self._folder, error)

    def _add_to_index(self, points: List[Point], size: int) -> None:
        rows = ((float(step), values) for step, _, values in points)
        self._with_index(lambda index: index.add(rows, size))

    def _with_index(self, work: Callable[[CurveIndex], None]) -> None:
        """Do `work` with the index; curves go on without one, and a reader makes it."""
        if self._index is not None:
            try:
                work(self._index)
            except (StaleError, OSError) as error:
                self._index = None
                logger.debug("curves in %s: no index is written any more: %s", self._folder, error)

    def _take(self) -> List[Point]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            points = list(self._waiting)
            self._waiting.clear()
        return points


def _line(step: int, values: Dict[str, float]) -> str:
    """Return a line of strict JSON, in which a value that is not finite is a text: `"NaN"`."""
    numbers = {name: as_json(value) for name, value in values.items()}
    return json.dumps({"step": step, **numbers}, allow_nan=False) + "\n"


def _is_torn(path: Path) -> bool:
    """Return whether the last line has no end."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"
    except OSError:  # there is no such file, or it is empty
        return False


# TensorBoard's files are TFRecords of `Event` messages (tensorflow/core/util/event.proto, .../summary.proto). The agent
# runs on a bare Python, so it encodes the four fields it needs itself.


def _event_file(folder: Path) -> BinaryIO:
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    file = (folder / f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.agent").open("ab")
    if file.tell() == 0:
        file.write(record(_double(1, now) + _bytes(3, b"brain.Event:2")))
    return file


def event(step: int, when: float, values: Dict[str, float]) -> bytes:
    """Return an `Event` with one scalar for each value: wall_time = 1, step = 2, summary = 5."""
    scalars = (_bytes(1, name.encode()) + _float(2, value) for name, value in values.items())
    return _double(1, when) + _whole(2, step) + _bytes(5, b"".join(_bytes(1, scalar) for scalar in scalars))


def record(data: bytes) -> bytes:
    """Return `data` framed as a TFRecord: its length, the length's checksum, itself, its checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _double(field: int, value: float) -> bytes:
    return bytes((field << 3 | 1,)) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    try:
        return bytes((field << 3 | 5,)) + struct.pack("<f", value)
    except OverflowError:
        return bytes((field << 3 | 5,)) + struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _whole(field: int, value: int) -> bytes:
    return bytes((field << 3,)) + _varint(value & 0xFFFFFFFFFFFFFFFF)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _table() -> List[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901 - Castagnoli, reversed
        table.append(value)
    return table


_CASTAGNOLI = _table()


def _masked(data: bytes) -> int:
    """Return the CRC-32C of `data`, rotated and shifted as TFRecord wants it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CASTAGNOLI[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
