"""The trials of a sweep as a table: for people, notebooks and pandas."""

from html import escape
from typing import Any

from torchyard.api.formatting import clean
from torchyard.client.metrics import data_frame
from torchyard.sweeps.results import Result, text_of

FIELDS = ("name", "outcome", "value", "percent", "seconds", "best", "why")


class TrialsTable(list[Result]):
    """The trials of a sweep by number: records with `name`, `outcome`, `value`, `parameters`, `best` and more."""

    @property
    def columns(self) -> list[str]:
        """The names of all columns: fields of a trial, then the paths of its parameters."""
        return list(dict.fromkeys([*FIELDS, *(path for trial in self for path in trial.parameters)]))

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with the number of the trial as its index.

        Raises:
            TorchYardError: pandas is not installed.
        """
        rows = [{"trial": trial.number, **_row(trial)} for trial in self]
        return data_frame(rows, ["trial", *self.columns]).set_index("trial")

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 -- the protocol of IPython
        printer.text(str(self))

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        titles = "".join(f"<th>{escape(text)}</th>" for text in head)
        body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
        return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"

    def _cells(self) -> list[list[str]]:
        return [self.columns, *([_cell(trial, name) for name in self.columns] for trial in self)]


def _row(trial: Result) -> dict[str, Any]:
    return {**{name: getattr(trial, name) for name in FIELDS}, **trial.parameters}


def _cell(trial: Result, column: str) -> str:
    if column not in FIELDS:
        return text_of(trial.parameters[column]) if column in trial.parameters else ""
    value = trial.non_finite or trial.value if column == "value" else getattr(trial, column)
    if value is None or value is False:
        return ""
    return clean(value) if isinstance(value, str) else text_of(value)
