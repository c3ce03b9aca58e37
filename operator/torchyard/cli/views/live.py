"""The view on a terminal, redrawn in place: state, progress, curve, metrics, ranks, output, events.

A function of a snapshot and of the size of the terminal. It never has more lines than the terminal has rows: rich would
draw the lines beyond them a second time when the view is closed.
"""

import math
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from torchyard.api.formatting import clean, clip
from torchyard.api.status import Phase, State
from torchyard.api.values import clock, figure, rate, span
from torchyard.cli.views.curve import draw, gaps
from torchyard.cli.views.snapshot import STATE_STYLES, Snapshot, age, curve_metric, headline

MAX_WIDTH = 160
STALE_SECONDS = 30.0  # a rank silent for longer is worth a colour
BORDER = 2

T = TypeVar("T")

# Rows of each block by the room there is; of every stage the blocks get theirs in this order, as far as rows are left.
STAGES = (
    {"ranks": 3, "output": 3, "curve": 5, "events": 2},
    {"output": 7, "ranks": 9, "curve": 7, "events": 4},
    {"curve": 10, "output": 13, "ranks": 17, "events": 6},
    {"curve": 16, "output": 41, "ranks": 65, "events": 12},
)
SMALLEST_CURVE = 4


class LiveView(Generic[T]):
    """Redraws a picture on a terminal; what it showed last stays on the screen.

    Args:
        console: of the terminal.
        picture: returns what is drawn, for a width and a height.
    """

    def __init__(self, console: Console, picture: Callable[[T, int, int], RenderableType]) -> None:
        self.console, self.picture = console, picture
        self.live = Live(
            console=console, auto_refresh=False, transient=False, redirect_stdout=False, redirect_stderr=False
        )
        self.live.start()

    def show(self, snapshot: T) -> None:
        """Draw its picture over the last one."""
        self.live.update(self.picture(snapshot, self.console.width, self.console.height), refresh=True)

    def close(self, snapshot: T | None) -> None:
        """Leave the last picture on the screen and give the terminal back."""
        if snapshot is not None:
            self.show(snapshot)
        self.live.stop()


class _Rows(NamedTuple):
    """How many rows each block may take."""

    curve: int
    ranks: int
    output: int
    events: int


def render(snapshot: Snapshot, width: int, height: int) -> RenderableType:
    """Return the whole view, at most `height` lines high."""
    inner = max(20, min(width, MAX_WIDTH) - 4)
    most = max(4, height - 1 - BORDER)  # the row below is the cursor's
    top = [*header(snapshot, inner), bar(snapshot, inner), *metrics(snapshot, inner, 1 if most < 12 else 3)]
    notice = [Text(clip(snapshot.notice, inner), style="bold yellow")] if snapshot.notice else []
    rows = shared(snapshot, most - len(top) - len(notice))
    parts: list[RenderableType] = [
        *top,
        *curve(snapshot, inner, rows.curve),
        *ranks(snapshot, rows.ranks),
        *output(snapshot, inner, rows.output),
        *events(snapshot, inner, rows.events),
        *notice,
    ]
    return Panel(
        Group(*(parts[:most] if len(parts) > most else parts)),
        title=Text(snapshot.job.metadata.name, style="bold"),
        width=min(width, MAX_WIDTH),
        border_style="dim",
        padding=(0, 1),
    )


def shared(snapshot: Snapshot, left: int) -> _Rows:
    """Share the rows that are left among the blocks that have something to show."""
    wanted = {
        "curve": 1000 if len(snapshot.losses) > 1 else 0,
        "ranks": len(snapshot.ranks) + 1 if snapshot.ranks else 0,
        "output": len(snapshot.output) + 1 if snapshot.output else 0,
        "events": len(snapshot.events),
    }
    given = dict.fromkeys(wanted, 0)
    for stage in STAGES:
        for name, most in stage.items():
            more = min(most, wanted[name]) - given[name]
            more = min(more, left)
            if more > 0 and (name != "curve" or given[name] + more >= SMALLEST_CURVE):
                given[name] += more
                left -= more
    return _Rows(**{name: 0 if rows < 2 and name != "events" else rows for name, rows in given.items()})


def header(snapshot: Snapshot, width: int) -> list[RenderableType]:
    """State, round, age and restarts; below them the sentence."""
    status = snapshot.job.status
    state = status.state or State.PENDING
    facts = [f"round {status.round}"] if status.round else []
    seconds = age(snapshot.job, snapshot.now)
    facts += [f"age {span(seconds)}"] if seconds is not None else []
    facts += [f"restarts {status.restarts.total}"] if status.restarts.total else []
    facts += [f"nodes {status.nodes.ready}/{status.nodes.desired}"] if status.nodes.desired else []
    words = "  " + clip(" · ".join(facts), max(0, width - len(state) - 2))
    lines: list[RenderableType] = [
        Text.assemble((state, STATE_STYLES.get(state, "bold cyan")), (words, "dim"), no_wrap=True)
    ]
    message = snapshot.sentence(status.message)
    cut = max(message.rfind(" ", 0, width + 1), 0) if len(message) > width else 0
    halves = [message[: cut or width], message[cut or width :].strip()]
    style = "red" if state == State.FAILED else ""
    return [*lines, *(Text(clip(half, width), style=style, no_wrap=True) for half in halves if half)]


def bar(snapshot: Snapshot, width: int) -> RenderableType:
    """Progress with rate and time left."""
    status, progress = snapshot.job.status, snapshot.job.status.progress
    total = f"/{progress.total_steps}" if progress.total_steps else ""
    words = [f"step {progress.step}{total}"]
    if progress.eta_seconds is not None and status.state == State.RUNNING:
        words.append(f"ETA {span(progress.eta_seconds)}")
    elif progress.phase and progress.phase != Phase.STEP and status.state == State.RUNNING:
        words.append(clean(progress.phase))
    if status.throughput.steps_per_second is not None:
        words.append(rate(status.throughput.steps_per_second, "steps"))
    if status.throughput.samples_per_second is not None:
        words.append(rate(status.throughput.samples_per_second, "samples"))
    smallest = 18 if progress.percent is not None else 0
    while len(words) > 1 and len("  ".join(words)) > width - smallest:
        words.pop()
    text = clip("  ".join(words), width)
    if progress.percent is None:
        return Text(text, no_wrap=True)
    percent = f"{progress.percent:3.0f}% "
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        ProgressBar(total=100, completed=progress.percent, width=max(10, width - len(text) - len(percent) - 2)),
        Text(percent, style="bold", no_wrap=True),
        Text(text, no_wrap=True),
    )
    return grid


def metrics(snapshot: Snapshot, width: int, limit: int) -> list[RenderableType]:
    """Metrics, the headline first, in at most `limit` lines; those that find no place are left out."""
    lines: list[Text] = []
    for name, value in headline(snapshot.job).items():
        pair = Text.assemble((f"{clip(clean(name), 30)} ", "dim"), value, "   ", no_wrap=True)
        if lines and len(lines[-1]) + len(pair) - 3 <= width:
            lines[-1].append_text(pair)
        elif len(lines) == limit:
            break
        else:
            lines.append(pair)
    return list(lines)


def curve(snapshot: Snapshot, width: int, rows: int) -> list[RenderableType]:
    """Draw the curve over steps, its range at the left and its steps below."""
    if len(snapshot.losses) < 2 or rows < 2:
        return []
    finite = [value for _, value in snapshot.losses if math.isfinite(value)]
    ends = [figure(max(finite)), figure(min(finite))] if finite else ["", ""]
    labels = [f"{curve_metric(snapshot.job)} {ends[0]}".rstrip(), ends[1]]
    margin = max(map(len, labels))
    lines = draw(snapshot.losses, max(8, width - margin - 1), rows - 1)
    texts = [
        Text.assemble((f"{label:>{margin}} ", "dim"), (line, "cyan"), no_wrap=True)
        for label, line in zip([labels[0], *[""] * (len(lines) - 2), labels[1]][: len(lines)], lines, strict=True)
    ]
    first, last = (f"step {figure(snapshot.losses[i][0])}" for i in (0, -1))
    missing = snapshot.missing or gaps(snapshot.losses)
    space = max(1, width - margin - 1 - len(first) - len(last))
    fitting = next((each for each in (missing, missing.partition(" points")[0], "") if len(each) + 2 <= space), "")
    middle = f" {fitting} ".center(space)[:space]
    axis = Text.assemble((f"{'':>{margin}} {first}", "dim"), (middle, "yellow"), (last, "dim"), no_wrap=True)
    return [*texts, axis]


def ranks(snapshot: Snapshot, rows: int) -> list[RenderableType]:
    """Return each rank's pod, node, phase and step; of many, those furthest behind."""
    if rows < 2:
        return []
    shown = snapshot.ranks
    if len(shown) > rows - 1:
        behind = sorted(shown, key=lambda rank: (-rank.lag, rank.seen))[: max(1, rows - 2)]
        shown = tuple(sorted(behind))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("rank", "pod", "node", "phase", "step", "behind by", "reported"):
        table.add_column(name, justify="left" if name in {"pod", "node", "phase"} else "right", no_wrap=True)
    for rank in shown:
        silent = snapshot.now - rank.seen
        busy = snapshot.job.status.state == State.RUNNING
        table.add_row(
            str(rank.rank),
            clean(rank.pod),
            clean(rank.node),
            clean(rank.phase),
            str(rank.step),
            f"{rank.lag} step{'s' if rank.lag > 1 else ''}" if rank.lag else "",
            f"{span(silent)} ago" if rank.seen else "",
            style="yellow" if busy and silent > STALE_SECONDS else "",
        )
    left = len(snapshot.ranks) - len(shown)
    return [table, *([Text(f"and {left} more ranks", style="dim")] if left and rows > 2 else [])]


def output(snapshot: Snapshot, width: int, rows: int) -> list[RenderableType]:
    """Return the last lines that the program has written."""
    if rows < 2:
        return []
    lines = snapshot.output[-(rows - 1) :]
    several = len({line.rank for line in snapshot.output}) > 1 or len(snapshot.ranks) > 1
    heads = [f"[rank {line.rank}] " if several else "" for line in lines]
    return [
        Text("output", style="dim"),
        *(
            Text.assemble((head, "dim"), clip(line.text.expandtabs(), max(1, width - len(head))), no_wrap=True)
            for head, line in zip(heads, lines, strict=True)
        ),
    ]


def events(snapshot: Snapshot, width: int, rows: int) -> Sequence[RenderableType]:
    """Return the newest events, oldest first."""
    lines = []
    for event in list(snapshot.events)[-rows:] if rows else []:
        at = clock(event.unix or snapshot.now)
        reason = clean(event.reason)
        message = clip(snapshot.sentence(event.message), max(10, width - len(at) - len(reason) - 3))
        style = "yellow" if event.type == "Warning" else "bold"
        lines.append(Text.assemble((f"{at} ", "dim"), (reason, style), f" {message}", no_wrap=True))
    return lines
