"""`torchyard completion SHELL`: the script that completes commands, options and run names in a shell.

The scripts ask `torchyard __complete WORD...` for the candidates of the last word; with none the shell offers files.
"""

from argparse import Action, ArgumentParser
from collections.abc import Callable, Collection, Sequence

from torchyard.cli.arguments import RUN_NAME, SEPARATOR, SWEEP_NAME
from torchyard.cli.errors import SUCCEEDED
from torchyard.client.location import run_names

SCRIPTS = {
    "bash": r"""
_torchyard() {
    local IFS=$'\n'
    COMPREPLY=($(torchyard __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _torchyard torchyard
""",
    "zsh": r"""
#compdef torchyard
_torchyard() {
    local -a found
    found=("${(@f)$(torchyard __complete "${(@)words[2,$CURRENT]}" 2>/dev/null)}")
    found=(${found:#})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _torchyard torchyard
""",
    "fish": r"""
function __torchyard_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found (torchyard __complete $words[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c torchyard -f -a '(__torchyard_complete)'
""",
}


def completion_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `completion`."""
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="shell to complete in")
    parser.epilog = """\
bash: source <(torchyard completion bash)
zsh:  source <(torchyard completion zsh)
fish: torchyard completion fish | source"""


def completion(shell: str) -> int:
    """Carry out `torchyard completion`."""
    print(SCRIPTS[shell].strip())
    return SUCCEEDED


def candidates(
    words: Sequence[str], commands: Collection[str], parser_of: Callable[[str], ArgumentParser]
) -> list[str]:
    """Return how the last of `words` may be completed; empty: only with file names.

    Args:
        words: all after the program's name.
        commands: names of the commands.
        parser_of: returns the parser of one command.
    """
    *before, current = words or [""]
    before = [word for word in before if word != "--debug"]
    if SEPARATOR in before:
        return []  # words of the user's program
    if not before:
        found = [*commands, "--help", "--version", "--debug"]
    elif before[0] not in commands:
        found = []
    else:
        found = of_command(parser_of(before[0]), before[1:], current)
    return [word for word in found if word.startswith(current)]


def of_command(parser: ArgumentParser, before: Sequence[str], current: str) -> list[str]:
    """Candidates behind a command's name."""
    options = {name: action for action in parser._actions for name in action.option_strings}  # noqa: SLF001
    if before and takes_value(options.get(before[-1])):
        return [str(choice) for choice in options[before[-1]].choices or ()]
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
    if action.metavar == SWEEP_NAME:
        from torchyard.local.sweeps import sweep_names

        return sweep_names()
    return run_names() if action.metavar == RUN_NAME else [str(choice) for choice in action.choices or ()]


def takes_value(action: Action | None) -> bool:
    """Return whether an option is followed by a value."""
    return action is not None and action.nargs != 0
