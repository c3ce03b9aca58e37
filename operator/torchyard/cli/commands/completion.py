"""`torchyard completion SHELL`: the script that completes commands, options, names of jobs and fields in a shell.

The scripts ask `torchyard __complete WORD...` for the candidates of the last word; with none the shell offers files.
After a candidate that ends with `.` or `=` no space follows. bash takes the part behind a `=` for a word.
"""

from argparse import ArgumentParser

from torchyard.cli.errors import SUCCEEDED

SCRIPTS = {
    "bash": r"""
_torchyard() {
    local IFS=$'\n'
    COMPREPLY=($(torchyard __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    if [[ ${COMPREPLY[0]-} == *[.=] ]]; then compopt -o nospace 2>/dev/null; fi
    if [[ "${COMP_WORDS[COMP_CWORD]}" == = || "${COMP_WORDS[COMP_CWORD-1]}" == = ]]; then
        COMPREPLY=("${COMPREPLY[@]#*=}")
    fi
}
complete -o default -F _torchyard torchyard
""",
    "zsh": r"""
#compdef torchyard
_torchyard() {
    local -a found
    found=("${(@f)$(torchyard __complete "${(@)words[2,$CURRENT]}" 2>/dev/null)}")
    found=(${found:#})
    local -a open=(${(M)found:#*[.=]}) closed=(${found:#*[.=]})
    if (( $#open )); then compadd -S '' -a open; fi
    if (( $#closed )); then compadd -a closed; fi
    if (( ! $#found )); then _files; fi
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
