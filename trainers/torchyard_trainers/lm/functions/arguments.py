"""The arguments that a reward function is called with. Pure, and without heavy imports."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

POSITIONAL = ("prompts", "completions", "rows")  # of a function that does not name `completions`
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# What TRL gives in place of values of records; none of it exists here.
_OF_TRL = ("completion_ids", "completions_ids", "trainer_state", "log_extra", "log_metric", "environments")


class SignatureError(TypeError):
    """A function that cannot be called with prompts, completions and columns."""


Call = Callable[[list[str], list[str], list[Mapping[str, Any]], list[str]], Any]


def caller(function: Callable[..., Any], name: str) -> Call:
    """Return how a reward function is called with prompts, completions, records, and the columns of all records.

    One that has a parameter `completions`, or only `**`, gets each parameter by its name, as in TRL: `prompts`,
    `completions`, `rows` (whole records), or the values of a column, a list with one for each completion. Any other
    gets prompts, completions and rows by position.

    Args:
        function: of a user.
        name: for messages.

    Raises:
        SignatureError: it takes other parameters.
    """
    parameters: Mapping[str, inspect.Parameter] = {}
    with suppress(ValueError):  # a function of C may not say what it takes
        parameters = inspect.signature(function).parameters
        if not _by_name(parameters):
            _check_positional(function, name)

    def call(prompts: list[str], completions: list[str], rows: list[Mapping[str, Any]], columns: list[str]) -> Any:
        if not _by_name(parameters):
            return function(prompts, completions, rows)
        given = {"prompts": prompts, "completions": completions, "rows": rows}
        return function(**arguments(parameters, given, columns, name))

    return call


def _by_name(parameters: Mapping[str, inspect.Parameter]) -> bool:
    kinds = [each.kind for each in parameters.values()]
    if inspect.Parameter.POSITIONAL_ONLY in kinds or inspect.Parameter.VAR_POSITIONAL in kinds:
        return False
    return "completions" in parameters or kinds == [inspect.Parameter.VAR_KEYWORD]


def _check_positional(function: Callable[..., Any], name: str) -> None:
    taken = inspect.signature(function)
    try:
        taken.bind(*POSITIONAL)
    except TypeError:
        raise SignatureError(
            f"{name}{taken} is called as {name}({', '.join(POSITIONAL)}), or by name if it has a parameter "
            "completions: prompts, completions, rows and the columns of records; change its parameters"
        ) from None


def arguments(
    parameters: Mapping[str, inspect.Parameter],
    given: Mapping[str, Any],
    columns: Sequence[str],
    name: str,
) -> dict[str, Any]:
    """Return the value of each parameter; `**` gets all columns that have no parameter.

    Raises:
        SignatureError: no record has the column of a parameter, which has no default.
    """
    rows = given["rows"]
    found: dict[str, Any] = {}
    for key, each in parameters.items():
        if each.kind not in _NAMED:
            continue
        plain = key.lstrip("_")  # of one that is not used
        if plain in given:
            found[key] = given[plain]
        elif key in columns:
            found[key] = [row.get(key) for row in rows]
        elif each.default is inspect.Parameter.empty:
            raise SignatureError(_unknown(key, columns, name))
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        values = {**{key: [row.get(key) for row in rows] for key in columns}, **given}
        found |= {key: value for key, value in values.items() if key not in parameters and key != "rows"}
    return found


def _unknown(key: str, columns: Iterable[str], name: str) -> str:
    """Return what is wrong with a parameter that is no column."""
    what = "which only TRL has" if key in _OF_TRL else "which is no column of the records"
    known = ", ".join(map(repr, sorted(columns)[:8])) or "none"
    return (
        f"{name} has the parameter {key!r}, {what}; their columns are {known}. Rename the parameter, give it a default "
        "or, for whole records, call it 'rows'"
    )
