"""The list of jobs in the terminal.

What jobs write is shown as `Text` without markup and without control characters.
"""

from collections import Counter
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.events import Resize
from textual.widgets import DataTable, Footer, Input, Static

from torchyard.api.formatting import clean
from torchyard.cli.top.actions import ACTIONS, ActionScreen
from torchyard.cli.top.job import JobScreen, LogScreen
from torchyard.cli.top.source import COLUMNS, MAX_ROWS, NARROW, WIDE, Listed, Source, matches
from torchyard.cli.views.snapshot import STATE_STYLES
from torchyard.client.errors import TorchYardError

Key = tuple[str, str]
"""Namespace, empty on this machine, and name."""


class Top(App[None]):
    """The dashboard.

    Args:
        source: of the jobs.
    """

    TITLE = "torchyard top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #where, #trouble { height: 1; }
    #trouble { color: $error; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    #filter.shown { display: block; }
    DataTable { height: 1fr; }
    Question { align: center middle; }
    Question > Vertical { width: 60; height: auto; border: round $warning; padding: 1 2; background: $surface; }
    #chart { height: 11; }
    #facts { height: 1fr; }
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source

    def on_mount(self) -> None:
        """Show the list."""
        self.push_screen(ListScreen(self.source))


class Table(DataTable[Text]):
    """A table that says in the footer what Enter does."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Open")]


class ListScreen(ActionScreen):
    """The list of jobs.

    Args:
        source: of the jobs.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "logs", "Logs"),
        *ACTIONS,
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "unfilter", "", show=False),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source, self._listed = source, Listed("", [])
        self._widths: dict[str, int] = {}
        self._keys: list[Key] = []

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        yield Static(id="where", markup=False)
        yield Input(placeholder="words of name, state, reason", id="filter")
        yield Table(cursor_type="row", zebra_stripes=True)
        yield Static(id="trouble", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Look now, and then every few seconds."""
        self.query_one(Table).focus()
        self.set_interval(self._source.pause, self.look)
        self.look()

    def on_resize(self, event: Resize) -> None:
        """Show more or fewer columns."""
        self._draw(event.size.width)

    def look(self) -> None:
        """Read the list, unless that is under way."""
        if self.is_current and not any(worker.group == "look" for worker in self.workers if worker.is_running):
            self.run_worker(self._read(), group="look")

    async def _read(self) -> None:
        try:
            self._listed = await self._source.jobs()
        except TorchYardError as error:
            self.say(error.sentence)
            return
        self.say("")
        self._draw(self.size.width)

    def _draw(self, width: int) -> None:
        words = self.query_one("#filter", Input).value
        rows = [cells for cells in self._listed.rows if matches(cells, words)]
        wide = tuple(name for name in COLUMNS if self._source.everywhere or name != "NAMESPACE")
        narrow = (*(("NAMESPACE",) if self._source.everywhere else ()), *NARROW)
        self._fill(wide if width >= WIDE else narrow, rows[:MAX_ROWS])
        states = Counter(cells["STATE"] for cells in self._listed.rows)
        counts = ", ".join(f"{number} {state}" for state, number in states.most_common())
        more = f"; the first {MAX_ROWS} of {len(rows)}, / filters" if len(rows) > MAX_ROWS else ""
        self.query_one("#where", Static).update(Text(f"{self._listed.where}  {counts or 'no jobs'}{more}"))

    def _fill(self, columns: tuple[str, ...], rows: list[dict[str, str]]) -> None:
        """Write the table; where its rows are the same, only cells that changed, so that the cursor stays."""
        table = self.query_one(Table)
        keys = [(cells.get("NAMESPACE", ""), cells["NAME"]) for cells in rows]
        cells_of = [[_cell(name, cells.get(name, "")) for name in columns] for cells in rows]
        # Widths that the table finds by itself come late on a busy machine: until then it cuts cells.
        widths = {
            name: max(len(name), *(cells[place].cell_len for cells in cells_of), 0)
            for place, name in enumerate(columns)
        }
        if widths != self._widths or keys != self._keys:
            chosen = self.chosen
            table.clear(columns=True)
            for name, width in widths.items():
                table.add_column(name, key=name, width=width)
            for cells in cells_of:
                table.add_row(*cells)
            self._widths, self._keys = widths, keys
            if chosen in keys:
                table.move_cursor(row=keys.index(chosen), animate=False)
            return
        for place, cells in enumerate(cells_of):
            for column, cell in enumerate(cells):
                if table.get_cell_at(Coordinate(place, column)) != cell:
                    table.update_cell_at(Coordinate(place, column), cell)

    @property
    def chosen(self) -> Key | None:
        """The job at the cursor."""
        place = self.query_one(Table).cursor_row
        return self._keys[place] if 0 <= place < len(self._keys) else None

    def target(self) -> tuple[Source, str] | None:
        """Return the job at the cursor."""
        if self.chosen is None:
            return None
        namespace, name = self.chosen
        return self._source.at(namespace), name

    # Keys.

    def on_data_table_row_selected(self) -> None:
        """Open a job (Enter, or a click)."""
        if (target := self.target()) is not None:
            self.app.push_screen(JobScreen(*target))

    def action_logs(self) -> None:
        """Show the output of a job."""
        if (target := self.target()) is not None:
            self.app.push_screen(LogScreen(*target))

    def action_filter(self) -> None:
        """Go to the filter."""
        box = self.query_one("#filter", Input)
        box.add_class("shown")
        box.focus()

    def action_unfilter(self) -> None:
        """Leave the filter, and show all jobs."""
        box = self.query_one("#filter", Input)
        box.value = ""
        box.remove_class("shown")
        self.query_one(Table).focus()

    def on_input_changed(self) -> None:
        """Show what matches."""
        self._draw(self.size.width)

    def on_input_submitted(self) -> None:
        """Go back to the list, filtered."""
        self.query_one(Table).focus()


def _cell(column: str, text: str) -> Text:
    return Text(clean(text), style=STATE_STYLES.get(text, "") if column == "STATE" else "")
