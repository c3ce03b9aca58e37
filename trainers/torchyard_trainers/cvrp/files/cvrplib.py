"""Problems and best known solutions in the format of CVRPLIB (vrp.galgos.inf.puc-rio.br). Imports no torch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.cvrp.files import solutions, vrp
from torchyard_trainers.cvrp.files.problem import REAL, Problem
from torchyard_trainers.cvrp.files.text import FIELD, reason


def find(path: Path) -> list[Problem]:
    """Read a `.vrp` file, or all that lie in a folder, by name. Each problem gets a slug of its own.

    Raises:
        ConfigError: nothing is there, or a file cannot be read as a problem of this kind.
    """
    try:
        files = sorted(path.glob("*.vrp")) if path.is_dir() else [path]
        there = path.exists()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{FIELD}: {path}: {reason(error)}; give a .vrp file or a folder of them") from error
    if not there:
        where = "" if path.is_absolute() else f" in {Path.cwd()}, the folder that the trainer runs in"
        fix = "give" if path.is_absolute() else "give the whole path of"
        raise ConfigError(f"{FIELD}: {path}: no such file or folder{where}; {fix} a .vrp file or a folder of them")
    if not files:
        raise ConfigError(f"{FIELD}: {path} holds no .vrp file; put some there, or name another folder")
    problems = [read(file) for file in files]
    slugs = unlike([problem.slug for problem in problems])
    return [replace(problem, slug=slug) for problem, slug in zip(problems, slugs, strict=True)]


def unlike(slugs: Sequence[str]) -> list[str]:
    """Number those that are equal to an earlier one, also where a volume does not tell capitals apart."""
    found: list[str] = []
    taken: set[str] = set()
    for slug in slugs:
        own, number = slug, 1
        while own.casefold() in taken:
            number += 1
            own = f"{slug}-{number}"
        taken.add(own.casefold())
        found.append(own)
    return found


def read(path: Path) -> Problem:
    """Read one `.vrp` file, and `.sol` of the same name if there is one.

    Raises:
        ConfigError: naming file, line and field.
    """
    problem = vrp.read(path)
    solution = path.with_suffix(".sol")
    try:
        there = solution.exists()
    except OSError as error:
        raise ConfigError(f"{FIELD}: {solution}: {reason(error)}; give a readable .sol file or none") from error
    if not there:
        # A sum of whole distances is whole: the classic sets (CMT, Golden, Tai) give real ones under EUC_2D.
        whole = problem.best is None or problem.best.is_integer()
        return problem if whole else replace(problem, metric=REAL)
    known = solutions.read(solution, problem)
    return replace(problem, metric=known.metric, best=known.length)
