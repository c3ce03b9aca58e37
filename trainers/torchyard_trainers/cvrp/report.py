"""The report of an evaluation: a table, files, and pictures of tours and of the curve."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchyard_trainers.core.checkpoints.commits import write_atomically
from torchyard_trainers.core.json_text import json_of
from torchyard_trainers.core.metrics.curves import say
from torchyard_trainers.core.metrics.plots import curve, read_curve
from torchyard_trainers.core.workload import Session
from torchyard_trainers.cvrp import decoding, plots, published
from torchyard_trainers.cvrp.evaluation import EVALUATION, make
from torchyard_trainers.cvrp.files import solutions
from torchyard_trainers.cvrp.files.problem import REAL, Problem
from torchyard_trainers.cvrp.params import Settings
from torchyard_trainers.cvrp.problems import open_problem

PICTURES = 4


class Row(NamedTuple):
    """One line of the table: a mean length, and how much longer it is than the reference of its set, in percent."""

    what: str
    cost: float
    gap: float | None


class EvaluationReport(NamedTuple):
    """The results of one evaluation, ready to be written."""

    heading: str
    rows: list[Row]
    problems: list[Problem]
    tours: list[list[int]]  # of the problems
    pictures: list[plots.Tour]
    metrics: dict[str, float]  # of the problems
    note: str | None = None  # why the table has no published figures
    levels: tuple[str, ...] = ()  # rows to draw beside the curve

    def write(self, folder: Path, curves: Path) -> list[Path]:
        """Print the table; write it, the tours and their solutions to a folder; return the files.

        Args:
            folder: created if it does not exist.
            curves: `metrics.jsonl` of the run, which may be missing.
        """
        say(self.table())
        files = {"evaluation.json": json_of(self.facts(), indent=1), "tours.svg": plots.tours(self.pictures)}
        points = read_curve(curves, "cost")
        if len(points) > 1:
            levels = {row.what: row.cost for row in self.rows if row.what in self.levels}
            files["curve.svg"] = curve("mean greedy tour length over steps", points, levels)
        for problem, moves in zip(self.problems, self.tours, strict=True):
            files[solution_of(problem)] = solutions.write(problem, moves)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, text)
        return [folder / name for name in files if "/" not in name]

    def table(self) -> str:
        """Return the rows as aligned text."""
        width = max(len(row.what) for row in self.rows)
        lines = [self.heading]
        for row in self.rows:
            gap_text = "" if row.gap is None else f"{row.gap:+8.2f} %"
            lines.append(f"  {row.what:<{width}}  {row.cost:9.3f}{gap_text}")
        if self.note is not None:
            lines.append(f"  {self.note}")
        return "\n".join(lines)

    def facts(self) -> dict[str, Any]:
        """Return the table and the solved files as JSON."""
        solved = [
            {
                "name": problem.name,
                "customers": len(problem.demand) - 1,
                "cost": problem.length(moves),
                "best": problem.best,
                "distances": problem.metric,
                "solution": solution_of(problem),
            }
            for problem, moves in zip(self.problems, self.tours, strict=True)
        ]
        rows = [row._asdict() for row in self.rows]
        return {"heading": self.heading, "rows": rows, "note": self.note, "files": solved}


def arrange(
    session: Session, settings: Settings, metrics: Mapping[str, float], problems: list[Problem], tours: list[list[int]]
) -> EvaluationReport:
    """Assemble the report. Collective: a few tours are constructed again to be drawn."""
    problem_of_run = open_problem(settings.problem)
    sizes = settings.customers, settings.capacity, settings.distribution, settings.problem
    figures = published.figures(*sizes)
    last = list(problem_of_run.heuristics)[-1]
    if "costSolver" in metrics:
        base, against = metrics["costSolver"], "PyVRP"
    elif figures:
        base, against = figures[0].mean[settings.customers], f"{figures[0].method}'s published mean"
    else:
        base, against = metrics[last], problem_of_run.heuristics[last].name
    heading = f"{described(settings)}, {settings.eval_instances} instances ({settings.distribution}); gaps to {against}"
    names = {
        "cost": f"{settings.model}, greedy",
        "costSampling": f"{settings.model}, best of {settings.decoding_samples} samples",
        "costAugmented": f"{settings.model}, {decoding.SYMMETRIES} symmetries",
        "costMultistart": f"{settings.model}, {decoding.SYMMETRIES} symmetries, one start a customer",
        **{metric: compared.name for metric, compared in problem_of_run.heuristics.items()},
        "costSolver": "PyVRP",
    }
    rows = [Row(what, metrics[name], gap(metrics[name], base)) for name, what in names.items() if name in metrics]
    means = [(figure.method, figure.mean[settings.customers]) for figure in figures]
    rows += [Row(method, mean, gap(mean, base)) for method, mean in means]
    gaps = []
    for problem, moves in zip(problems, tours, strict=True):
        cost = problem.length(moves)
        rows.append(Row(title(problem), cost, problem.best and gap(cost, problem.best)))
        if problem.best:
            gaps.append(gap(cost, problem.best))
    found = {"files": float(len(problems))} if problems else {}
    if gaps:
        found["gapBestKnownPercent"] = sum(gaps) / len(gaps)
    pictures = [
        plots.Tour(f"{problem.name}: {problem.written(problem.length(moves))}", problem.xy, problem.demand, moves)
        for problem, moves in zip(problems, tours, strict=True)
    ]
    note = published.why_none(*sizes)
    levels = (*(each.name for each in problem_of_run.heuristics.values()), *(each.method for each in figures[:1]))
    return EvaluationReport(
        heading, rows, problems, tours, (pictures or draw(session, settings))[:PICTURES], found, note, levels
    )


def described(settings: Settings) -> str:
    """Return problem and size for people."""
    problem = open_problem(settings.problem)
    capacity = f", capacity {settings.capacity}" if problem.capacitated else ""
    return f"{problem.title}, {settings.customers} {problem.unit}{capacity}"


def title(problem: Problem) -> str:
    """Describe a problem: its name, the length of its best known solution, and whether distances are rounded."""
    best = problem.written(problem.best) if problem.best else "-"
    # Two files may have one NAME.
    called = problem.name if problem.name == problem.slug else f"{problem.name} ({problem.slug})"
    return f"{called}, best known {best}{f' in {REAL}' if problem.metric == REAL else ''}"


def solution_of(problem: Problem) -> str:
    """Return the path of the tour of a problem, relative to the folder of an evaluation.

    It is derived from the file name, not from NAME in the file: that may be a path, too long, or not unique.
    """
    return f"solutions/{problem.slug}.sol"


@torch.no_grad()
def draw(session: Session, settings: Settings) -> list[plots.Tour]:
    """Return the tours of the first instances of the evaluation set. Collective.

    One after the other, so that the pictures do not need more memory than the evaluation.
    """
    found = []
    for number in range(PICTURES):
        ids = torch.tensor([number], device=session.world.device)
        instances = make(settings, EVALUATION, ids)
        with session.precision.forward():
            routes = decoding.seek(
                session.parallel.module, instances, settings.decoding, settings.decoding_samples, ids
            )
        name = f"instance {number}: {routes.cost.item():.3f}"
        found.append(
            plots.Tour(name, instances.xy[0].tolist(), instances.demand[0].tolist(), routes.moves[0, 0].tolist())
        )
    return found


def gap(cost: float, reference: float) -> float:
    """Return how much longer than a reference, in percent."""
    return 100 * (cost / reference - 1)
