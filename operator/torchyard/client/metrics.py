"""The curves of a job as a table: `metrics.jsonl` of its checkpoint folder."""

import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchyard.client.errors import FAILED, TorchYardError

FILE = "metrics.jsonl"
MAX_BYTES = 256 * 2**20
MAX_SIZE = "256Mi"


class MetricsTable(list[dict[str, float]]):
    """Rows of metrics; each row has `step` and the metrics that were logged at that step."""

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
        size = path.stat().st_size
        if size > MAX_BYTES:
            what = f"{path} has {size / 2**20:.0f} MiB, and at most {MAX_BYTES // 2**20} are read"
            raise TorchYardError(what, "fetch the file and read it in parts", FAILED)
        with path.open("rb") as file:
            return rows_of(file)
    except FileNotFoundError:
        return MetricsTable()


def rows_of(lines: Iterable[bytes]) -> MetricsTable:
    """Return the rows by step; of a step that was trained twice, after a restart, the newer values count (pure)."""
    found: dict[float, dict[str, float]] = {}
    for row in filter(None, map(_row, lines)):
        found.setdefault(row["step"], {}).update(row)
    return MetricsTable(found[step] for step in sorted(found))


def _row(line: bytes) -> dict[str, float] | None:
    """Return the numbers of a line; None: it was cut short, or is no object with a step."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not _is_number(values.get("step")):
        return None
    return {"step": values["step"], **{name: value for name, value in values.items() if _is_number(value)}}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
