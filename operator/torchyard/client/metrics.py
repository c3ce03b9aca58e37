"""The curves of a job as a table: `metrics.jsonl` of its checkpoint folder."""

import importlib.util
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from torchyard.api.files import open_regular
from torchyard.api.status import NonFinite
from torchyard.client.errors import FAILED, TorchYardError

FILE = "metrics.jsonl"
MAX_BYTES = 256 * 2**20
MAX_SIZE = "256Mi"
NON_FINITE = frozenset(get_args(NonFinite))


class MetricsTable(list[dict[str, float]]):
    """Rows of metrics; each row has `step` and the metrics that were logged at that step, also NaN and infinity."""

    @property
    def columns(self) -> list[str]:
        """The names of all columns: `step` first, the others as they appear."""
        return list(dict.fromkeys(["step", *(name for row in self for name in row)]))

    def column(self, name: str) -> list[tuple[float, float]]:
        """Return the pairs (step, value) of one metric.

        Raises:
            TorchYardError: the metric was never logged.
        """
        found = [(row["step"], row[name]) for row in self if name in row]
        if not found:
            raise TorchYardError(f"there is no metric {name!r}", f"there are {', '.join(self.columns) or 'none'}")
        return found

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with the step as its index.

        Raises:
            TorchYardError: pandas is not installed.
        """
        return data_frame(self, self.columns).set_index("step")


def data_frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Return rows as a pandas.DataFrame.

    Raises:
        TorchYardError: pandas is not installed.
    """
    if importlib.util.find_spec("pandas") is None:
        raise TorchYardError("to_pandas() needs pandas, which is not installed", "`pip install pandas`", FAILED)
    return importlib.import_module("pandas").DataFrame.from_records(list(rows), columns=columns)


def table_of(path: Path) -> MetricsTable:
    """Read `metrics.jsonl`; no file is an empty table.

    Raises:
        TorchYardError: it is too large to be read into memory.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                what = f"{path} has {size / 2**20:.0f} MiB, and at most {MAX_BYTES // 2**20} are read"
                raise TorchYardError(what, "fetch the file and read it in parts", FAILED)
            return rows_of(file)
    except FileNotFoundError:
        return MetricsTable()
    except OSError as error:
        raise TorchYardError(f"{path} cannot be read: {error.strerror}", code=FAILED) from error


def rows_of(lines: Iterable[bytes]) -> MetricsTable:
    """Return the rows by step; of a step that was trained twice, after a restart, the newer values count (pure)."""
    found: dict[float, dict[str, float]] = {}
    for row in filter(None, map(_row, lines)):
        found.setdefault(row["step"], {}).update(row)
    return MetricsTable(found[step] for step in sorted(found))


def value_of(value: object) -> float | None:
    """Return the value of a metric as `metrics.jsonl` has it; None: it is no number, nor the name of one not finite."""
    if isinstance(value, str):
        return float(value) if value in NON_FINITE else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, float) or abs(value) < sys.float_info.max else None


def _row(line: bytes) -> dict[str, float] | None:
    """Return the numbers of a line; None: it was cut short, or is no object with a step."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = value_of(values.get("step")) if isinstance(values, dict) else None
    if step is None or not math.isfinite(step):
        return None
    numbers = {name: value_of(value) for name, value in values.items()}
    return {"step": step, **{name: value for name, value in numbers.items() if value is not None}}
