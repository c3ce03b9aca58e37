"""The results of a sweep: one record a trial, as CSV too (pure)."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from torchyard.api.resource import TrainingJob
from torchyard.sweep.outcomes import best_of, better, outcomes_of
from torchyard.sweep.resource import TrainingSweep
from torchyard.sweep.trials import trial_of


class Result(Struct, frozen=True, kw_only=True):
    """What is known of one trial. `outcome`: running, complete, stopped or failed."""

    number: int
    name: str
    outcome: str
    state: str
    value: float | None
    percent: int
    parameters: dict[str, Any]
    progress: str
    seconds: float | None
    best: bool = False


def results_of(sweep: TrainingSweep, jobs: Mapping[int, TrainingJob]) -> list[Result]:
    """Return a record for each trial, by number."""
    trials = {number: trial_of(job) for number, job in jobs.items()}
    found = {number: outcomes_of(sweep.spec, trial) for number, trial in trials.items()}
    best = best_of(sweep.spec, [each[-1] for each in found.values() if each[-1] is not None])
    results = []
    for number, job in sorted(jobs.items()):
        outcome, status, done = found[number][-1], job.status, job.status.progress.percent
        value = outcome.value if outcome is not None else status.metrics.get(sweep.spec.objective.metric)
        begun, ended = status.start_time, status.completion_time
        results.append(
            Result(
                number=number,
                name=job.metadata.name,
                outcome=outcome.kind if outcome is not None else "running",
                state=str(status.state),
                value=value,
                percent=outcome.percent if outcome is not None else int(done or 0),
                parameters=trials[number].record.parameters,
                progress=f"{int(done)}%" if done is not None else "",
                seconds=ended - begun if begun is not None and ended is not None else None,
                best=best is not None and best.trial == number,
            )
        )
    return results


def best_so_far(sweep: TrainingSweep, results: Sequence[Result]) -> list[float]:
    """Return the best value after each trial that trained to its end, in order of their numbers."""
    found: list[float] = []
    for each in results:
        if each.outcome == "complete" and each.value is not None:
            before = found[-1] if found else each.value
            found.append(each.value if better(sweep.spec, each.value, before) else before)
    return found


def csv_of(sweep: TrainingSweep, results: Sequence[Result]) -> str:
    """Return the results as CSV, one trial a line."""
    text = io.StringIO()
    paths = [parameter.path for parameter in sweep.spec.parameters]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "name", "outcome", "percent", sweep.spec.objective.metric, "seconds", "best", *paths])
    for each in results:
        value = "" if each.value is None else repr(each.value)
        seconds = "" if each.seconds is None else f"{each.seconds:.0f}"
        cells = [each.parameters.get(path, "") for path in paths]
        writer.writerow([each.number, each.name, each.outcome, each.percent, value, seconds, int(each.best), *cells])
    return text.getvalue()
