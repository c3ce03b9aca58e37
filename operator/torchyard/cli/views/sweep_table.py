"""The trials of a sweep as a table, and its best trial as a line."""

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from torchyard.api.formatting import addressed, clip
from torchyard.api.resource import TrainingJob
from torchyard.api.values import figure, plural
from torchyard.cli.views.curve import draw
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.results import Result, best_so_far, results_of, text_of
from torchyard.sweeps.space import short_names, wanted_trials

SHOWN_TRIALS = 12
CURVE_ROWS = 4
CURVE_COLUMNS = 60
MAX_WIDTH = 24
"""Of a column."""
SHOWN_PARAMETERS = 8
"""In one line."""
SHOWN_FAILURES = 3
UNDECIDED = ("running", "suspended")


def table_of(sweep: TrainingSweep, jobs: Mapping[int, TrainingJob]) -> RenderableType:
    """Return the running trials and the newest others, with the best value so far as a curve."""
    results = results_of(sweep, jobs)
    running = [each for each in results if each.outcome in UNDECIDED]
    over = [each for each in results if each.outcome not in UNDECIDED]
    best = next((each for each in results if each.best), None)
    shown = {each.number: each for each in [*([best] if best else []), *running, *over[-SHOWN_TRIALS:]]}
    table = _Trials(sweep, [each for _, each in sorted(shown.items())[-2 * SHOWN_TRIALS :]])
    curve = best_so_far(sweep, results)
    lines = draw([(float(index), value) for index, value in enumerate(curve)], CURVE_COLUMNS, CURVE_ROWS)
    caption = [f"best so far: {figure(curve[0])} to {figure(curve[-1])}"] if lines else []
    failed = [each for each in results if each.why]
    why = [f"{each.name} failed: {addressed(each.why, each.name)}" for each in failed[-SHOWN_FAILURES:]]
    return Group(Text(_line(sweep, results)), table, *(Text(each) for each in [*lines, *caption, *why]))


class _Trials:
    """A table with the parameters that fit into the terminal, in their order; a line names the others."""

    def __init__(self, sweep: TrainingSweep, results: Sequence[Result]) -> None:
        self.names = short_names(sweep.spec.parameters)
        head = ["TRIAL", "STATE", "PROGRESS", sweep.spec.objective.metric, *self.names.values()]
        self.rows = [head, *(self._cells(each) for each in results)]
        self.styles = [None, *("bold green" if each.best else None for each in results)]

    def _cells(self, each: Result) -> list[str]:
        parameters = (text_of(each.parameters[path]) if path in each.parameters else "" for path in self.names)
        return [each.name, each.outcome, each.progress, each.objective, *parameters]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, pad_edge=False, show_header=False)
        used, left_out = 0, []
        columns = [[each if index else _clipped_name(each) for each in column] for index, column in enumerate(
            zip(*self.rows, strict=True)
        )]  # fmt: skip
        kept = []
        for index, column in enumerate(columns):
            width = min(MAX_WIDTH, max(cell_len(each) for each in column)) + 2
            if index < len(columns) - len(self.names) or used + width - 2 <= options.max_width:
                used += width
                kept.append(column)
                table.add_column(no_wrap=True, max_width=MAX_WIDTH)
            else:
                left_out.append(column[0])
        for cells, style in zip(zip(*kept, strict=True), self.styles, strict=True):
            table.add_row(*(Text(each) for each in cells), style=style if cells[0] != "TRIAL" else "bold")
        yield table
        if left_out:
            yield Text(f"not shown, for want of columns: {', '.join(left_out)}; -o json has all", style="dim")


def _clipped_name(name: str) -> str:
    """Return the name of a trial in at most `MAX_WIDTH` characters, its number kept."""
    sweep, dash, number = name.rpartition("-")
    return clip(sweep, MAX_WIDTH - len(number) - 1) + dash + number


def ended_line(sweep: TrainingSweep, jobs: Mapping[int, TrainingJob], number: int) -> str:
    """Return how a trial ended or stopped, with counts and the best trial so far."""
    results = results_of(sweep, jobs)
    trial = next(each for each in results if each.number == number)
    how = f"failed: {addressed(trial.why, trial.name)}" if trial.why else trial.state
    return f"{trial.name}: {how}; {_line(sweep, results)}"


def line_of(sweep: TrainingSweep, jobs: Mapping[int, TrainingJob]) -> str:
    """Return counts and the best trial so far."""
    return _line(sweep, results_of(sweep, jobs))


def _line(sweep: TrainingSweep, results: Sequence[Result]) -> str:
    words = (*UNDECIDED, "complete", "stopped", "failed")
    counts = {word: sum(each.outcome == word for each in results) for word in words}
    counted = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    trials = f"{len(results)} of {plural(wanted_trials(sweep.spec), 'trial')} ({counted or 'none yet'})"
    best = next((each for each in results if each.best), None)
    if best is None or best.value is None:
        return trials
    names = short_names(sweep.spec.parameters)
    parameters = [f"{names[path]}={clip(text_of(value), MAX_WIDTH)}" for path, value in best.parameters.items()]
    if (more := len(parameters) - SHOWN_PARAMETERS) > 0:
        parameters[SHOWN_PARAMETERS:] = [f"{more} more"]
    return (
        f"{trials}; best: {best.name} with {sweep.spec.objective.metric} {figure(best.value)} ({', '.join(parameters)})"
    )
