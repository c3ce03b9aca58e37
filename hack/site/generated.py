"""The pages that are generated from the code: commands, exit codes, and one for each reason."""

import re
from pathlib import Path

from torchyard.api.exit_codes import EXIT_REASONS
from torchyard.api.reasons import Kind, Reason
from torchyard.cli.main import COMMANDS, overview, parser_of

HEADINGS = {
    Kind.WAITING: ("Before a round", "A job waits with this reason before its next round."),
    Kind.RUNNING: ("During a round", "A job whose round is open has this reason."),
    Kind.CONDITION: ("Conditions", "A condition of the job has this reason; `status.reason` never has."),
    Kind.WARNING: ("Warnings", "The job continues; the warning is listed in `status.warnings`."),
    Kind.FAILURE: ("Failures of a pod or a worker", "The first cause of a round's end."),
    Kind.FINAL: ("Why a job ended", "The job has ended with this reason."),
    Kind.OPERATOR: ("The operator", "It keeps the operator from its work."),
    Kind.OTHER: ("Others", "A code of the cluster or of another version."),
}
LINK = re.compile(r"\]\((?![a-z]+:|#)")
"""The start of a link to another page of the same folder."""
FAULT_ROW = re.compile(r"(?m)^\| (?P<number>[A-Z]\d+) \| (?P<fault>.*?) \| (?P<reasons>.*?) \| (?P<message>.*?) \|")


def generated_pages(root: Path) -> dict[str, str]:
    """Return the text of every page that is generated for the site only, by its path in the site."""
    faults = [match.groupdict() for match in FAULT_ROW.finditer((root / "docs/faults.md").read_text(encoding="utf-8"))]
    pages = {f"reference/reasons/{reason.value}.md": reason_page(reason, faults) for reason in Reason}
    return pages | {
        "reference/reasons.md": reasons_page(),
        "reference/command-line.md": command_line_page(),
        "reference/exit-codes.md": exit_codes_page(),
    }


def reason_page(reason: Reason, faults: list[dict[str, str]]) -> str:
    """Return the page of a reason: what happened, what to do, what the operator does, and messages that users read.

    Args:
        reason: the reason.
        faults: rows of the table of faults, each with its `number`, `fault`, `reasons` and `message`.
    """
    lines = [f"# {reason.value}", "", sentence(reason.sentence), "", HEADINGS[reason.kind][1], ""]
    if reason.next_step:
        lines += ["## What to do", "", sentence(reason.next_step), ""]
    if effects := effects_of(reason):
        lines += ["## What TorchYard does", "", *(f"- {effect}" for effect in effects), ""]
    lines += [
        "## Where to look",
        "",
        "`torchyard explain NAME` shows the message with its evidence, the first cause of each round, and events.",
        "",
    ]
    if rows := [row for row in faults if f"`{reason.value}`" in row["reasons"]]:
        lines += ["## Faults with this reason", "", "|  | Fault | What you read |", "| -- | -- | -- |"]
        lines += [
            f"| [{row['number']}](../../faults.md) | {row['fault']} | {LINK.sub('](../../', row['message'])} |"
            for row in rows
        ]
    return "\n".join(lines).rstrip() + "\n"


def effects_of(reason: Reason) -> list[str]:
    """Return what the operator does about a reason, in sentences."""
    failure = reason.kind is Kind.FAILURE
    effects = {
        "The job waits, and starts by itself once the cause is gone.": reason.kind is Kind.WAITING
        and not reason.stalls,
        "The condition `Stalled` is true: waiting does not help, a person has to act.": reason.stalls,
        "An event says so when the job begins to wait.": reason.announced,
        "The job fails: trying again cannot help.": reason.permanent,
        "The next round starts, and the restart budget is charged only if the round made no progress.": (
            failure and reason.counted and not reason.permanent
        ),
        "The next round starts, and the restart budget is not charged.": failure and not reason.counted,
        "The same exception at the same step twice ends the job.": reason.repeatable,
        "A second time in a row ends the job.": reason.tried_once_more,
        f"The pod is created again; {reason.start_attempts} times in a row end the job.": reason.start_attempts > 0,
    }
    return [text for text, applies in effects.items() if applies]


def reasons_page() -> str:
    """Return the list of all reasons by what they describe."""
    lines = ["# Reasons", "", "Every code of `status.reason`, of conditions, events and `attempts[].reason`.", ""]
    for kind, (title, _) in HEADINGS.items():
        if reasons := [reason for reason in Reason if reason.kind is kind]:
            lines += [f"## {title}", "", "| Reason | What happened |", "| -- | -- |"]
            lines += [
                f"| [`{reason.value}`](reasons/{reason.value}.md) | {cell(sentence(reason.sentence))} |"
                for reason in reasons
            ]
            lines += [""]
    return "\n".join(lines)


def command_line_page() -> str:
    """Return the help of every command."""
    lines = ["# Command line", "", "```text", overview(), "```", ""]
    for name, command in COMMANDS.items():
        lines += [f"## `torchyard {name}`", "", command.summary, "", "```text", parser_of(name).format_help().rstrip()]
        lines += ["```", ""]
    return "\n".join(lines)


def exit_codes_page() -> str:
    """Return the table of exit codes of workers."""
    lines = [
        "# Exit codes",
        "",
        "What the exit code of a worker means. Codes 64 to 77, 126 and 127 mean it only for built-in trainers, and",
        "where the agent knows that the command could not be started: other programs use these numbers differently.",
        "",
        "| Code | Reason | What happened |",
        "| -- | -- | -- |",
    ]
    lines += [
        f"| {int(code)} | [`{reason.value}`](reasons/{reason.value}.md) | {cell(sentence(reason.sentence))} |"
        for code, reason in EXIT_REASONS.items()
    ]
    return "\n".join(lines) + "\n"


def sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("|", "\\|")
