"""Foreign text, and commands in sentences, as people read them: in a message, a table, on a terminal."""

import re

# Escape sequences of terminals.
ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS and their like, up to their end
    r"|[ -/]*[0-~])"
)


# C0 but tab, DEL, C1, and the marks that turn the direction of what follows.
CONTROLS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


_OWN_COMMAND = re.compile(r"`torchyard (explain|logs|resume|stacks|status|sweep show)`")
_KUBECTL = re.compile(r"`kubectl (describe pod|describe pvc|logs)( [^`]*)?`")


def clean(line: str) -> str:
    """Return one line of foreign text without escape sequences and control characters.

    Of a line that was overwritten with carriage returns (a progress bar), what a terminal would show last.
    """
    line = line.rstrip("\r\n")
    if line.isprintable():  # most are
        return line
    if "\r" in line:
        line = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    return CONTROLS.sub("", ESCAPES.sub("", line))


def name_of_file(name: str) -> str:
    """Return the name of a file, or a sentence with one, as a line that UTF-8 can hold: a name may have any bytes."""
    return clean(name.encode("utf-8", "backslashreplace").decode())


def addressed(text: str, name: str, flags: str = "") -> str:
    """Return a sentence whose commands can be typed as they stand: with the name of the job and where it is.

    Args:
        text: sentence of a reason, in which commands name no job.
        name: of the job.
        flags: of a job on a cluster, as ` -n team`; empty: it is on this machine.
    """
    text = _OWN_COMMAND.sub(lambda found: f"`torchyard {found[1]} {name}{flags}`", text)
    return _KUBECTL.sub(lambda found: f"`kubectl {found[1]}{flags}{found[2] or ''}`", text)


def clip(text: str, width: int) -> str:
    """`text` in at most `width` characters, its end marked when something is missing."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
