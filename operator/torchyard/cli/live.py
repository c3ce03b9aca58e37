"""The view on a terminal, redrawn in place: state, progress, loss curve, ranks, events; a function of a picture."""

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from torchyard.api.figures import figure, span
from torchyard.cli.curve import draw
from torchyard.cli.picture import Picture, age, headline, unix
from torchyard.cli.words import clean, clip, clock

STATE_STYLES = {
    "Running": "bold green",
    "Succeeded": "bold green",
    "Failed": "bold red",
    "Recovering": "bold yellow",
    "Suspending": "bold yellow",
    "Terminating": "bold yellow",
    "Suspended": "bold yellow",
    "Interrupted": "bold yellow",
}
MAX_WIDTH = 110
MAX_RANKS = 8
CURVE_ROWS = 6
EVENTS = 5
STALE_SECONDS = 30.0  # a rank silent for longer is worth a colour


class LiveView:
    """Redraws a picture on a terminal; what it showed last stays on the screen."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(
            console=console, auto_refresh=False, transient=False, redirect_stdout=False, redirect_stderr=False
        )
        self.live.start()

    def show(self, picture: Picture) -> None:
        """Draw `picture` over the last one."""
        self.live.update(render(picture, self.console.width, self.console.height), refresh=True)

    def close(self, picture: Picture | None) -> None:
        """Leave the last picture on the screen and give the terminal back."""
        if picture is not None:
            self.show(picture)
        self.live.stop()


def render(picture: Picture, width: int, height: int) -> RenderableType:
    """The whole view, at most `height` lines high where that can be."""
    inner = max(20, min(width, MAX_WIDTH) - 4)
    few = height < 24
    parts: list[RenderableType] = [header(picture, inner), bar(picture, inner)]
    if not few:
        parts += curve(picture, inner)
    parts += [metrics(picture, inner)] if picture.job.status.metrics else []
    parts += [ranks(picture, 3 if few else MAX_RANKS)] if picture.ranks else []
    parts += [events(picture, inner, 2 if few else EVENTS)] if picture.events else []
    if picture.notice:
        parts.append(Text(clip(picture.notice, inner), style="bold yellow"))
    return Panel(
        Group(*parts),
        title=Text(picture.job.metadata.name, style="bold"),
        width=min(width, MAX_WIDTH),
        border_style="dim",
        padding=(0, 1),
    )


def header(picture: Picture, width: int) -> RenderableType:
    """State and its sentence; round, age, restarts."""
    status = picture.job.status
    state = status.state or "Pending"
    facts = [f"round {status.round}"] if status.round else []
    seconds = age(picture.job, picture.now)
    facts += [f"age {span(seconds)}"] if seconds is not None else []
    facts += [f"restarts {status.restarts.total}"] if status.restarts.total else []
    facts += [f"nodes {status.nodes.ready}/{status.nodes.desired}"] if status.nodes.desired else []
    line = Text.assemble((state, STATE_STYLES.get(state, "bold cyan")), "  ", (" · ".join(facts), "dim"))
    message = clean(status.message)
    return Group(line, Text(clip(message, 2 * width), style="red" if state == "Failed" else "")) if message else line


def bar(picture: Picture, width: int) -> RenderableType:
    """Progress with rate and time left."""
    status, progress = picture.job.status, picture.job.status.progress
    total = f"/{progress.total_steps}" if progress.total_steps else ""
    words = [f"step {progress.step}{total}"]
    if status.throughput.steps_per_second is not None:
        words.append(f"{figure(status.throughput.steps_per_second)} step/s")
    if status.throughput.samples_per_second is not None:
        words.append(f"{figure(status.throughput.samples_per_second)} samples/s")
    if progress.eta_seconds is not None and status.state == "Running":
        words.append(f"ETA {span(progress.eta_seconds)}")
    elif progress.phase and progress.phase != "step" and status.state == "Running":
        words.append(progress.phase)
    text = "  ".join(words)
    if progress.percent is None:
        return Text(text)
    percent = f"{progress.percent:3.0f}% "
    grid = Table.grid(padding=(0, 1))
    grid.add_row(
        ProgressBar(total=100, completed=progress.percent, width=max(10, width - len(text) - len(percent) - 2)),
        Text(percent, style="bold"),
        Text(text),
    )
    return grid


def curve(picture: Picture, width: int) -> list[RenderableType]:
    """The loss over steps, its range at the left and its steps below; nothing before the second point."""
    values = [value for _, value in picture.losses]
    if len(values) < 2:
        return []
    labels = ["loss " + figure(max(values)), figure(min(values))]
    margin = max(map(len, labels))
    lines = draw(picture.losses, max(8, width - margin - 1), CURVE_ROWS)
    texts = [
        Text.assemble((f"{label:>{margin}} ", "dim"), (line, "cyan"))
        for label, line in zip([labels[0], *[""] * (len(lines) - 2), labels[1]], lines, strict=True)
    ]
    first, last = (f"step {figure(picture.losses[i][0])}" for i in (0, -1))
    space = max(1, width - margin - 1 - len(first) - len(last))
    return [*texts, Text(f"{'':>{margin}} {first}{'':>{space}}{last}", style="dim")]


def metrics(picture: Picture, width: int) -> RenderableType:
    """The loss and the headline metrics in one or two lines."""
    values = picture.job.status.metrics
    pairs = {"loss": figure(values["loss"])} if "loss" in values else {}
    pairs |= headline(picture.job)
    text = Text()
    for name, value in pairs.items():
        if len(text) + len(name) + len(value) > 2 * width:
            break
        text.append(f"{clean(name)} ", style="dim").append(f"{value}   ")
    return text


def ranks(picture: Picture, limit: int) -> RenderableType:
    """Each rank's pod, node, phase, step and lag; of many, those furthest behind."""
    shown = picture.ranks
    if len(shown) > limit:
        shown = sorted(sorted(shown, key=lambda rank: (-rank.lag, rank.seen))[:limit])
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("rank", "pod", "node", "phase", "step", "lag", "seen"):
        table.add_column(name, justify="right" if name in {"rank", "step", "lag", "seen"} else "left", no_wrap=True)
    for rank in shown:
        silent = picture.now - rank.seen
        busy = picture.job.status.state == "Running"
        table.add_row(
            str(rank.rank),
            clean(rank.pod),
            clean(rank.node),
            clean(rank.phase),
            str(rank.step),
            str(rank.lag),
            f"{span(silent)} ago" if rank.seen else "",
            style="yellow" if busy and silent > STALE_SECONDS else "",
        )
    if len(shown) < len(picture.ranks):
        return Group(table, Text(f"and {len(picture.ranks) - len(shown)} more ranks", style="dim"))
    return table


def events(picture: Picture, width: int, limit: int) -> RenderableType:
    """The newest events, oldest first."""
    lines = []
    for event in list(picture.events)[-limit:]:
        at = clock(unix(event.time) or picture.now)
        reason = clean(event.reason)
        message = clip(clean(event.message), max(10, width - len(at) - len(reason) - 3))
        style = "yellow" if event.type == "Warning" else "bold"
        lines.append(Text.assemble((f"{at} ", "dim"), (reason, style), f" {message}"))
    return Group(*lines)
