"""The trials of a sweep as a table, and its best trial as a line."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchyard.api.formatting import addressed, figure, plural
from torchyard.api.resource import TrainingJob
from torchyard.cli.views.curve import draw
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.results import Result, best_so_far, results_of
from torchyard.sweeps.space import wanted_trials

SHOWN_TRIALS = 12
CURVE_ROWS = 4
SHOWN_FAILURES = 3
UNDECIDED = ("running", "suspended")


def table_of(sweep: TrainingSweep, jobs: Mapping[int, TrainingJob]) -> RenderableType:
    """Return the running trials and the newest others, with the best value so far as a curve."""
    results = results_of(sweep, jobs)
    table = Table(box=None, pad_edge=False)
    paths = [parameter.path for parameter in sweep.spec.parameters]
    for name in (
        "TRIAL",
        "STATE",
        "PROGRESS",
        sweep.spec.objective.metric,
        *(path.rpartition(".")[2] for path in paths),
    ):
        table.add_column(name)
    running = [each for each in results if each.outcome in UNDECIDED]
    over = [each for each in results if each.outcome not in UNDECIDED]
    best = next((each for each in results if each.best), None)
    shown = {each.number: each for each in [*([best] if best else []), *running, *over[-SHOWN_TRIALS:]]}
    for _, each in sorted(shown.items())[-2 * SHOWN_TRIALS :]:
        cells = [each.name, each.outcome, each.progress, figure(each.value) if each.value is not None else ""]
        cells += [_shown(each.parameters.get(path)) for path in paths]
        table.add_row(*cells, style="bold green" if each.best else None)
    curve = [(float(index), value) for index, value in enumerate(best_so_far(sweep, results))]
    failed = [each for each in results if each.why]
    why = [f"{each.name} failed: {addressed(each.why, each.name)}" for each in failed[-SHOWN_FAILURES:]]
    lines = [*draw(curve, 60, CURVE_ROWS), *why]
    return Group(Text(_line(sweep, results)), table, *(Text(each) for each in lines))


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
    parameters = ", ".join(f"{path.rpartition('.')[2]}={_shown(value)}" for path, value in best.parameters.items())
    return f"{trials}; best: {best.name} with {sweep.spec.objective.metric} {figure(best.value)} ({parameters})"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return figure(value) if isinstance(value, float) else str(value)
