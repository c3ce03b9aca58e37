"""`torchyard doctor`."""

from argparse import ArgumentParser
from typing import Literal

from torchyard.cli import arguments as common
from torchyard.cli.arguments import location_options
from torchyard.cli.errors import FAILED, SUCCEEDED


def doctor_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `doctor`."""
    location_options(parser)
    parser.add_argument(
        "--no-pod",
        dest="pod",
        action="store_false",
        help="do not start the pod that checks the connection to the operator",
    )
    common.output(parser, "json", "yaml", help="print the results as a list")


def doctor(context: str | None, namespace: str | None, pod: bool, output: Literal["json", "yaml"] | None) -> int:
    """Carry out `torchyard doctor`.

    Checks the resource, the operator, rights, GPUs, and whether pods reach the operator.

    The last check starts a pod in the namespace for a few seconds.

    Exit codes: 0 no problem was found, 1 there are problems.
    """
    from torchyard.cli.commands.cluster_checks import examine
    from torchyard.cli.commands.intake_probe import Finding
    from torchyard.cli.output import emit
    from torchyard.client.remote.session import Remote, ask

    marks = {"ok": "ok  ", "note": "note", "wrong": "FAIL"}

    def show(finding: Finding) -> None:
        if output is None:
            print(f"{marks[finding.verdict]}  {finding.what}" + (f": {finding.fix}" if finding.fix else ""), flush=True)

    async def look(remote: Remote) -> list[Finding]:
        found = []
        async for finding in examine(remote, pod=pod):
            show(finding)
            found.append(finding)
        return found

    found = ask(look, context, namespace)
    if output is not None:
        emit([finding._asdict() for finding in found], output)
    return FAILED if any(finding.verdict == "wrong" for finding in found) else SUCCEEDED
