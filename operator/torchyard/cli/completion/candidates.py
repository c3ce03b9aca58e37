"""Candidates for the last word of a command line."""

from argparse import Action, ArgumentParser
from collections.abc import Callable, Collection, Sequence

from torchyard.cli.arguments import ASSIGNMENT, RUN_NAME, SEPARATOR, SWEEP_NAME
from torchyard.cli.completion.names import Where, job_names, sweep_names


def candidates(
    words: Sequence[str],
    commands: Collection[str],
    parser_of: Callable[[str], ArgumentParser],
    *,
    on_cluster: bool = False,
) -> list[str]:
    """Return how the last of `words` may be completed; empty: only with file names.

    Args:
        words: all after the program's name, as the shell splits them.
        commands: names of the commands.
        parser_of: returns the parser of one command.
        on_cluster: whether names mean jobs of the cluster only, as for kubectl.
    """
    *before, current = joined(words) or [""]
    before = [word for word in before if word != "--debug"]
    if SEPARATOR in before:
        return []  # words of the user's program
    if not before:
        found = [*commands, "--help", "--version", "--debug"]
    elif before[0] not in commands:
        found = []
    else:
        found = of_command(parser_of(before[0]), before[1:], current, on_cluster=on_cluster)
    return [word for word in found if word.startswith(current)]


def joined(words: Sequence[str]) -> list[str]:
    """Return words in which `a=b` is one word; bash splits it into three."""
    found: list[str] = []
    for word in words:
        if found and (word == "=" or (found[-1].endswith("=") and found[-1] != "=" and "=" not in word)):
            found[-1] += word
        else:
            found.append(word)
    return found


def of_command(parser: ArgumentParser, before: Sequence[str], current: str, *, on_cluster: bool) -> list[str]:
    """Return the candidates behind a command's name."""
    options = {name: action for action in parser._actions for name in action.option_strings}  # noqa: SLF001
    if before and takes_value(options.get(before[-1])):
        action = options[before[-1]]
        if action.metavar == ASSIGNMENT:
            from torchyard.cli.completion.fields import assignments

            return assignments(current, before)
        return [str(choice) for choice in action.choices or ()]
    if current.startswith("-"):
        return list(options)
    given = 0
    for index, word in enumerate(before):
        if not word.startswith("-") and not (index and takes_value(options.get(before[index - 1]))):
            given += 1
    positional = [action for action in parser._actions if not action.option_strings]  # noqa: SLF001
    if not positional or (given >= len(positional) and positional[-1].nargs is None):
        return []
    action = positional[min(given, len(positional) - 1)]
    where = Where.of(before, can_be_on_cluster="--context" in options, on_cluster=on_cluster)
    if action.metavar == SWEEP_NAME:
        return sweep_names(where)
    return job_names(where) if action.metavar == RUN_NAME else [str(choice) for choice in action.choices or ()]


def takes_value(action: Action | None) -> bool:
    """Return whether an option is followed by a value."""
    return action is not None and action.nargs != 0
