"""One job in the terminal: a curve, its status as `torchyard status` prints it, its output, the stacks of its ranks."""

import time
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, RichLog, Static

from torchyard.api.formatting import clean
from torchyard.cli.top.actions import ACTIONS, ActionScreen
from torchyard.cli.top.source import Shown, Source
from torchyard.cli.views.curve import chart
from torchyard.cli.views.show import render
from torchyard.cli.views.snapshot import curve_metric
from torchyard.client.backend import Backend
from torchyard.client.errors import TorchYardError
from torchyard.client.location import opened

ROWS = 8
TAIL = 300
"""Lines of each rank that the view of the output begins with."""
MAX_LINES = 5000
BACK = Binding("escape,q", "app.pop_screen", "Back", key_display="esc")


class JobScreen(ActionScreen):
    """One job.

    Args:
        source: of its location.
        name: of the job.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,n", "metric(1)", "Next curve", key_display="→"),
        Binding("left,p", "metric(-1)", "Previous", key_display="←", show=False),
        Binding("l", "logs", "Logs"),
        Binding("t", "stacks", "Stacks"),
        *ACTIONS,
        BACK,
    ]

    def __init__(self, source: Source, name: str) -> None:
        super().__init__()
        self._source, self._job = source, name
        self._shown: Shown | None = None
        self._metric = ""

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        yield Static(id="chart", markup=False)
        with VerticalScroll(id="facts"):
            yield Static(id="status", markup=False)
        yield Static(id="trouble", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Look now, and then every few seconds."""
        self.query_one("#facts").focus()
        self.set_interval(self._source.pause, self.look)
        self.look()

    def on_resize(self) -> None:
        """Draw the curve as wide as the terminal."""
        self._draw()

    def look(self) -> None:
        """Read the job, unless that is under way."""
        if self.is_current and not any(worker.group == "look" for worker in self.workers if worker.is_running):
            self.run_worker(self._read(), group="look")

    async def _read(self) -> None:
        trouble = ""
        try:
            self._shown = await self._source.job(self._job)
        except TorchYardError as error:
            trouble = error.sentence
        self.say(trouble)
        self._draw()

    def _draw(self) -> None:
        if self._shown is None:
            return
        kept, details, curves, flags = self._shown
        names = sorted(curves.metrics)
        if self._metric not in names:
            wished = curve_metric(kept.job)
            self._metric = wished if wished in names else next(iter(names), "")
        lines = ["no metrics yet" + (f" ({curves.note})" if curves.note else "")]
        if self._metric:
            lines = chart(self._metric, curves.metrics[self._metric], max(10, self.size.width - 1), ROWS)
            lines[0] += f"   ({names.index(self._metric) + 1} of {len(names)})"
        self.query_one("#chart", Static).update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"))
        self.query_one("#status", Static).update(render(kept, details, time.time(), flags))

    def target(self) -> tuple[Source, str]:
        """Return this job."""
        return self._source, self._job

    def action_metric(self, step: int) -> None:
        """Show another curve."""
        names = sorted(self._shown.curves.metrics) if self._shown is not None else []
        if self._metric in names:
            self._metric = names[(names.index(self._metric) + step) % len(names)]
            self._draw()

    def action_logs(self) -> None:
        """Show the output."""
        self.app.push_screen(LogScreen(self._source, self._job))

    def action_stacks(self) -> None:
        """Show the stacks of all ranks."""
        self.app.push_screen(StackScreen(self._source, self._job))


class LogScreen(Screen[None]):
    """The output of a job as it is written.

    Args:
        source: of its location.
        name: of the job.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("end", "end", "Follow"), BACK]

    def __init__(self, source: Source, name: str) -> None:
        super().__init__()
        self._source, self._job = source, name

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        yield Static(Text(f"output of {self._job}", style="bold"), id="where")
        yield RichLog(max_lines=MAX_LINES, wrap=True, markup=False, highlight=False)
        yield Footer()

    def on_mount(self) -> None:
        """Follow the output until the screen is closed."""
        self.query_one(RichLog).focus()
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        log = self.query_one(RichLog)
        try:
            async with opened(self._source.location, lambda _sentence: None) as backend:
                async for line in backend.logs(self._job, follow=True, tail=TAIL):
                    # A reader who scrolled up stays there.
                    log.write(Text(str(line)), scroll_end=log.is_vertical_scroll_end)
        except TorchYardError as error:
            log.write(Text(clean(error.sentence), style="red"))
        else:
            log.write(Text("the job is over", style="dim"))

    def action_end(self) -> None:
        """Go to the newest line, and follow."""
        self.query_one(RichLog).scroll_end(animate=False)


class StackScreen(Screen[None]):
    """The stacks of all ranks, once.

    Args:
        source: of its location.
        name: of the job.
    """

    BINDINGS: ClassVar[list[BindingType]] = [BACK]

    def __init__(self, source: Source, name: str) -> None:
        super().__init__()
        self._source, self._job = source, name

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        with VerticalScroll():
            yield Static(Text(f"asking the ranks of {self._job} ..."), id="stacks")
        yield Footer()

    def on_mount(self) -> None:
        """Ask."""
        self.query_one(VerticalScroll).focus()
        self.run_worker(self._read())

    async def _read(self) -> None:
        from torchyard.client.ranks import RankStacks, shown

        async def read(backend: Backend) -> list[RankStacks]:
            return await backend.stacks(self._job)

        try:
            ranks = sorted(await self._source.ask(read), key=lambda each: each.rank)
            text = "\n\n".join(map(shown, ranks)) or "no rank runs now"
        except TorchYardError as error:
            text = clean(error.sentence)
        self.query_one("#stacks", Static).update(Text(text))
