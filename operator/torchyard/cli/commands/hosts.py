"""Runs on hosts: `torchyard run --host NAME`, and commands of runs that are there."""

import asyncio
import json
import subprocess
import sys
from typing import Any, Literal

import msgspec

from torchyard.cli.commands.collect import print_stacks
from torchyard.cli.commands.fetches import Fetch, bring_all
from torchyard.cli.errors import INTERRUPTED, SUCCEEDED
from torchyard.cli.output import Format, say
from torchyard.client.artifacts import bring
from torchyard.client.hosts.launch import HostOptions, resume, start
from torchyard.client.hosts.records import HostRun, forget, recorded
from torchyard.client.hosts.remote_run import RemoteTorchYard, controller_of, fetch_of, follow
from torchyard.client.hosts.ssh import CUT
from torchyard.client.ranks import RankStacks
from torchyard.client.start import RequestedJob


def run_there(
    wanted: RequestedJob,
    name: str | None,
    options: HostOptions,
    *,
    quiet: bool,
    output: Format | None,
    fetches: list[Fetch],
) -> int:
    """Start a run on hosts and show it until it ends; then fetch what was asked for."""
    return watch(start(wanted, name, options, say), quiet=quiet, output=output, fetches=fetches)


def watch(run: HostRun, *, quiet: bool, output: Format | None, fetches: list[Fetch]) -> int:
    """Show a run on hosts until it ends."""
    where = run.members[0].host
    try:
        code = follow(run, quiet=quiet, notice=say)
    except KeyboardInterrupt:
        say(f"{run.name} continues on {where}; `torchyard stop {run.name}` saves and stops it")
        return INTERRUPTED
    if output is not None:
        subprocess.run(controller_of(run).words("status", run.name, "-o", output), check=False)
    if code == SUCCEEDED:
        asyncio.run(bring_all(fetch_of(run), run.name, fetches))
    return code


def forward(command: str, words: list[str], values: dict[str, Any], name: str) -> int | None:
    """Carry out a command about a run on hosts: there, where all its files are. None: it is not on a host."""
    run = recorded(name)
    if run is None:
        return None
    if command == "fetch" and values["path"] is not None:
        limits = {"replace": values["replace"], "max_size": values["max_size"]}
        print(asyncio.run(bring(fetch_of(run), run.name, values["path"], values["to"], **limits)))
        return SUCCEEDED
    remote = controller_of(run)
    if command == "resume":
        resume(run)
        return watch(run, quiet=values["quiet"], output=values["output"], fetches=[])
    if command == "stacks":
        return _stacks(run, values["rank"], values["output"])
    terminal = sys.stdout.isatty() and sys.stdin.isatty()
    code = subprocess.run(remote.words(command, *words, terminal=terminal), check=False).returncode
    if code == CUT:
        raise remote.host.failed(code, "")
    if command in {"rm", "delete"} and code == SUCCEEDED:
        for member in run.members[1:]:
            RemoteTorchYard(member).ask("leave", run.name)
        forget(run.name)
    return code


def _stacks(run: HostRun, rank: int | None, output: Literal["json", "yaml"] | None) -> int:
    """Ask the agents on every host, and print what all ranks do."""
    answers = [json.loads(RemoteTorchYard(member).ask("stacks", run.name)) for member in run.members]
    found = [msgspec.convert(each, RankStacks) for answer in answers for each in answer]
    return print_stacks(run.name, found, rank, output)
