"""Outputs of metrics over time: stdout, `metrics.jsonl`, TensorBoard event files, trackers. Rank 0 only."""

import os
import re
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from torchyard_trainers.core.config import Config
from torchyard_trainers.core.json_text import json_of
from torchyard_trainers.core.metrics.trackers import Trackers
from torchyard_trainers.core.report import Reporter


class Speed:
    """Steps and samples per second over the last few steps, including pauses for evaluation and saves."""

    def __init__(self, samples_per_step: int, window: int = 64) -> None:
        """Measure over at most `window` steps."""
        self._samples = samples_per_step
        self._times: deque[float] = deque(maxlen=window + 1)

    def tick(self, now: float) -> dict[str, float]:
        """Count one finished step."""
        self._times.append(now)
        elapsed = now - self._times[0]
        if elapsed <= 0:
            return {}
        steps = (len(self._times) - 1) / elapsed
        return {"stepsPerSecond": steps, "samplesPerSecond": steps * self._samples}


class Curves:
    """Appends scalars by step. A resumed run appends, too: of two lines with the same step, the later one counts.

    `metrics.jsonl` is strict JSON: a value that is not finite is a text there, `"NaN"`.

    A truncated line stays in the file; readers skip it.
    """

    def __init__(self, folder: Path | None, *, tensorboard: bool, trackers: Trackers | None = None) -> None:
        """Write below `folder` (None: nowhere); without the tensorboard package there are no event files."""
        self._folder = folder
        self._trackers = trackers
        self._lines: Any = None
        self._wants_events = tensorboard
        self._events: Any = None
        self._kept: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        for file in (self._lines, self._events):
            if file is not None:
                file.close()
        if self._trackers is not None:
            self._trackers.close(failed=kind is not None)

    def keep(self, values: dict[str, float]) -> dict[str, float]:
        """Keep values that not every step has, of rollouts and evaluations, for the next line; return them."""
        self._kept |= values
        return values

    def add(self, step: int, total_steps: int, values: Mapping[str, float]) -> None:
        """Record the values of a step, and those that were kept; print them."""
        values, self._kept = {**values, **self._kept}, {}
        if self._folder is None:
            return
        say(line(step, total_steps, values))
        if self._lines is None:
            path = self._folder / "metrics.jsonl"
            torn = _is_torn(path)
            self._lines = path.open("a", buffering=1)
            if torn:  # otherwise the next line would continue it
                self._lines.write("\n")
        self._lines.write(json_of({"step": step, **values}) + "\n")
        if self._wants_events:
            self._write_event(self._folder, step, values)
        if self._trackers is not None:
            self._trackers.add(step, values)

    def show(self, step: int, rows: Sequence[Mapping[str, str | float]]) -> None:
        """Add a table of samples to the event files and trackers."""
        if self._folder is None or not rows:
            return
        if self._wants_events:
            self._write_event(self._folder, step, {}, markdown(rows))
        if self._trackers is not None:
            self._trackers.show(step, rows)

    def complete(self, step: int, total_steps: int, values: Mapping[str, float]) -> None:
        """Add what was kept, if there is anything, and flush: a curve covers the steps of a checkpoint.

        The next round would begin without it.
        """
        if self._kept:
            self.add(step, total_steps, values)
        if self._events is not None:
            self._events.flush()

    def _write_event(self, folder: Path, step: int, values: Mapping[str, float], text: str = "") -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.compat.proto.tensor_pb2 import TensorProto
            from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
            from tensorboard.plugins.text.metadata import create_summary_metadata
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            self._wants_events = False
            return
        if self._events is None:
            self._events = EventFileWriter(str(folder / "tensorboard"))
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        if text:
            metadata = create_summary_metadata(display_name="samples", description="")
            shown = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=TensorShapeProto())
            scalars.append(Summary.Value(tag="samples", metadata=metadata, tensor=shown))
        self._events.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=scalars)))


_WIDEST = 120  # characters of a cell


def markdown(rows: Sequence[Mapping[str, str | float]]) -> str:
    """Return a table of Markdown; long cells are cut."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = [f"| {' | '.join(names)} |", f"|{' -- |' * len(names)}"]
    text += [f"| {' | '.join(_cell(row.get(name, '')) for name in names)} |" for row in rows]
    return "\n".join(text) + "\n"


def _cell(value: str | float) -> str:
    if not isinstance(value, str):
        return f"{value:.3g}"
    shown = value if len(value) <= _WIDEST else f"{value[: _WIDEST // 2]} ... {value[-_WIDEST // 2 :]}"
    return re.sub(r"([\\|`*_\[\]<])", r"\\\1", shown).replace("\n", " ")


def _is_torn(path: Path) -> bool:
    """Whether the last line is truncated, for example by a full disk or a lost node."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def open_curves(config: Config, folder: Path, reporter: Reporter, *, is_main: bool) -> Curves:
    """Open the outputs of the config on rank 0; other ranks write nothing."""
    if not is_main:
        return Curves(None, tensorboard=False)
    return Curves(folder, tensorboard=config.logging.tensorboard, trackers=Trackers(config, folder, reporter.warn))


def say(text: str) -> None:
    """Print one line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def line(step: int, total: int, values: Mapping[str, float]) -> str:
    """Format a step as one line: `step   120/1000  12%  loss=-0.0312  cost=5.01 ...`."""
    numbers = "  ".join(f"{name}={value:.4g}" for name, value in values.items())
    return f"step {step:>{len(str(total))}}/{total}  {100 * step // max(total, 1):>3}%  {numbers}"
