"""The results of a sweep: one record a trial, as CSV too (pure)."""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from torchyard.api.formatting import clean
from torchyard.api.names import OF_THIS_MACHINE
from torchyard.api.resource import ObjectMeta, TrainingJob, whole_percent
from torchyard.api.status import NonFinite, State
from torchyard.api.values import figure
from torchyard.sweeps.outcomes import Outcome, best_of, better, outcomes_of, why_failed
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.space import trial_spec
from torchyard.sweeps.trials import trial_of


class Result(Struct, frozen=True, kw_only=True):
    """What is known of one trial.

    Attributes:
        number: from 0 on.
        name: of its job.
        outcome: running, suspended (saved and stopped with its sweep), complete, stopped (early) or failed.
        state: of the job.
        value: of the objective; None: it has none yet, or it is not finite.
        non_finite: what the objective is instead of a number: NaN, Infinity or -Infinity; None: it is one.
        percent: of the steps after which it has that value.
        parameters: that were suggested, by their paths.
        progress: of the job, for people; of a trial that was stopped early up to the rung that it is judged by.
        seconds: from its start to its end; None: it is not over.
        best: whether it is the best of those that trained to their end.
        why: it failed; empty: it did not.
    """

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
    why: str = ""
    non_finite: NonFinite | None = None

    @property
    def objective(self) -> str:
        """The value of the objective for people; empty if it has none."""
        return self.non_finite or ("" if self.value is None else figure(self.value))


def results_of(sweep: TrainingSweep, jobs: Mapping[int, TrainingJob]) -> list[Result]:
    """Return a record for each trial, by number."""
    trials = {number: trial_of(job) for number, job in jobs.items()}
    found = {number: outcomes_of(sweep.spec, trial) for number, trial in trials.items()}
    best = best_of(sweep.spec, [each[-1] for each in found.values() if each[-1] is not None])
    results = []
    for number, job in sorted(jobs.items()):
        outcome, status, done = found[number][-1], job.status, job.status.progress.percent
        if outcome is not None and outcome.kind == "stopped":
            done = outcome.percent
        failed = outcome is not None and outcome.kind == "failed"
        value = outcome.value if outcome is not None else status.metrics.get(sweep.spec.objective.metric)
        newest = status.non_finite_metrics.get(sweep.spec.objective.metric)
        running = newest.value if newest is not None else None
        begun, ended = status.start_time, status.completion_time
        results.append(
            Result(
                number=number,
                name=job.metadata.name,
                outcome=_outcome(job, outcome),
                state=str(status.state),
                value=value,
                non_finite=outcome.non_finite if outcome is not None else running,
                percent=outcome.percent if outcome is not None and not failed else whole_percent(done or 0),
                parameters=trials[number].record.parameters,
                progress=f"{whole_percent(done)}%" if done is not None else "",
                seconds=ended - begun if begun is not None and ended is not None else None,
                best=best is not None and best.trial == number,
                why=why_failed(sweep.spec, trials[number]) if failed else "",
            )
        )
    return results


def _outcome(job: TrainingJob, outcome: Outcome | None) -> str:
    if outcome is not None:
        return outcome.kind
    return "suspended" if job.status.state is State.SUSPENDED else "running"


def best_job(sweep: TrainingSweep, results: Sequence[Result]) -> TrainingJob | None:
    """Return the job of the best trial, which can be run on its own; None if no trial has trained to its end."""
    best = next((each for each in results if each.best), None)
    if best is None:
        return None
    spec = trial_spec(sweep.spec.job_template.spec, best.parameters)
    # Where it started: relative paths of its program are found from anywhere.
    annotations = {name: text for name, text in sweep.metadata.annotations.items() if name in OF_THIS_MACHINE}
    name, namespace = f"{sweep.metadata.name}-best", sweep.metadata.namespace
    return TrainingJob(metadata=ObjectMeta(name=name, namespace=namespace, annotations=annotations), spec=spec)


def best_so_far(sweep: TrainingSweep, results: Sequence[Result]) -> list[float]:
    """Return the best value after each trial that trained to its end, in order of their numbers."""
    found: list[float] = []
    for each in results:
        if each.outcome == "complete" and each.value is not None:
            before = found[-1] if found else each.value
            found.append(each.value if better(sweep.spec, each.value, before) else before)
    return found


def text_of(value: Any) -> str:
    """Return the value of a parameter for people: numbers in few digits, quotes only around what would be no text."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    plain = clean(value)
    another = not plain.strip() or plain in {"true", "false", "null"} or _is_number(plain)
    return json.dumps(plain, ensure_ascii=False) if another else plain  # "1" is not 1


def csv_of(sweep: TrainingSweep, results: Sequence[Result]) -> str:
    """Return the results as CSV, one trial a line, in which no text is a formula for a spreadsheet."""
    text = io.StringIO()
    paths = [parameter.path for parameter in sweep.spec.parameters]
    writer = csv.writer(text, lineterminator="\n")
    metric = sweep.spec.objective.metric
    head = ["trial", "name", "outcome", "percent", metric, "seconds", "best", "why", *paths]
    writer.writerow(map(_cell, head))
    for each in results:
        value = each.non_finite or ("" if each.value is None else repr(each.value))
        seconds = "" if each.seconds is None else f"{each.seconds:.0f}"
        cells = [each.parameters.get(path, "") for path in paths]
        known = [each.number, each.name, each.outcome, each.percent, value, seconds, int(each.best), each.why]
        writer.writerow(map(_cell, [*known, *cells]))
    return text.getvalue()


_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")  # full-width signs count, too


def _cell(value: Any) -> Any:
    """Return a cell; an apostrophe precedes a text that a spreadsheet would calculate: it may be a stranger's."""
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")  # the writer does not quote a carriage return alone
    return f"'{text}" if _FORMULA.match(text) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
