"""Requests about a run in an allocation of Slurm: on the login node, and on the nodes of the allocation."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from importlib.resources import files

import msgspec

from torchyard.cli.errors import STOPPED, SUCCEEDED
from torchyard.cli.hosted.runs import node_home
from torchyard.cli.views.outcome import exit_code
from torchyard.client.errors import TorchYardError
from torchyard.client.local import find, load
from torchyard.local.runs import suspend_run


def nodes_of(partition: str) -> int:
    """Print the addresses of the nodes of a partition of Slurm."""
    from torchyard.hosts.slurm import addresses_of

    print(json.dumps(addresses_of(partition)))
    return SUCCEEDED


def queue(name: str) -> int:
    """Queue a run with Slurm as standard input describes, or as before; print the id of its job."""
    from torchyard.hosts.slurm import SlurmSettings, read_slurm, write_slurm
    from torchyard.hosts.slurm import queue as submit

    folder, described = find(name), sys.stdin.buffer.read()
    if described:
        settings, before = msgspec.json.decode(described, type=SlurmSettings), read_slurm(folder)
        write_slurm(folder, msgspec.structs.replace(settings, job=before.job if before is not None else ""))
    current = read_slurm(folder)
    assert current is not None, "a run of Slurm was described when it was queued first"
    suspend_run(folder, suspend=False)
    command = [sys.executable, "-P", "-m", "torchyard.cli.hosted", "allocation", name]
    home = f"TORCHYARD_HOME={folder.home}"
    print(submit(folder, current, load(folder).job.spec, ["env", home, *command]).job)
    return SUCCEEDED


def allocation(name: str) -> int:
    """Control a run on the first node of an allocation; at its time limit, save, and queue it again."""
    from torchyard.client.run_log import log_to_run_folder
    from torchyard.hosts import slurm
    from torchyard.hosts.nodes import HostGang
    from torchyard.hosts.settings import GangSettings
    from torchyard.local.controller import run_job
    from torchyard.local.run import write_atomic

    folder = find(name)
    settings, job = slurm.read_slurm(folder), os.environ["SLURM_JOB_ID"]
    assert settings is not None
    run = load(folder).job
    if run.status.state.terminal or run.spec.suspend:  # stopped while it was queued
        return SUCCEEDED
    gang: GangSettings | None = None
    nodes: subprocess.Popen[bytes] | None = None
    if run.spec.nodes > 1:
        gang = slurm.gang_of(settings, str(folder.home), run.metadata.uid)
        write_atomic(folder.path / "gang.json", msgspec.json.encode(gang))
        supervisor = str(files("torchyard.hosts").joinpath("supervisor.py"))
        hosted = [sys.executable, "-P", "-m", "torchyard.cli.hosted", "task", name]
        command = ["env", f"TORCHYARD_HOME={folder.home}", sys.executable, "-I", "-S", supervisor, "-", *hosted]
        nodes = slurm.start_nodes(gang, command, folder.path / "slurm.log")
    limit, environment = False, dict(os.environ)
    for foreign in set(os.environ) - set(slurm.without_slurm(os.environ)):
        del os.environ[foreign]

    async def until_over() -> int:
        stop = asyncio.Event()

        def reached() -> None:
            nonlocal limit
            limit = True
            stop.set()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, reached)
        members = HostGang(folder, gang) if gang is not None else None
        return exit_code(await run_job(folder, stop=stop, gang=members))

    with log_to_run_folder(folder):
        code = asyncio.run(until_over())
    if nodes is not None:
        nodes.wait()
    if limit and code == STOPPED:
        suspend_run(folder, suspend=False)
        slurm.requeue(job, environment)
    return SUCCEEDED if code == STOPPED else code


def task(name: str) -> int:
    """Keep the pods of a further node of an allocation."""
    from torchyard.hosts.node import run_node
    from torchyard.hosts.settings import NodeSettings, read_gang
    from torchyard.hosts.slurm import without_slurm

    gang, here = read_gang(find(name).path), os.environ["SLURMD_NODENAME"]
    assert gang is not None
    index = next(number for number, host in enumerate(gang.hosts) if host.name == here)
    for foreign in set(os.environ) - set(without_slurm(os.environ)):
        del os.environ[foreign]
    asyncio.run(run_node(NodeSettings.of(name, gang, index)))
    return SUCCEEDED


def stacks(name: str) -> int:
    """Print the stacks of the ranks on this host, or on all nodes of an allocation, as JSON."""
    from torchyard.hosts.slurm import on_every_node, read_slurm

    settings = read_slurm(find(name)) if node_home(name) is None else None
    if settings is None:
        return stacks_here(name)
    command = [sys.executable, "-P", "-m", "torchyard.cli.hosted", "stacks-here", name]
    nodes = load(find(name)).job.spec.nodes
    answers = on_every_node(settings.job, nodes, ["env", f"TORCHYARD_HOME={find(name).home}", *command])
    print(json.dumps([each for line in answers for each in json.loads(line)]))
    return SUCCEEDED


def stacks_here(name: str) -> int:
    """Print the stacks of the ranks on this host as JSON."""
    from torchyard.client.local import LocalBackend

    found = node_home(name)
    if found is not None:
        os.environ["TORCHYARD_HOME"] = str(found.home)
    try:
        ranks = asyncio.run(LocalBackend().stacks(name))
    except TorchYardError:
        if found is None:
            raise
        ranks = []
    print(msgspec.json.encode(ranks).decode())
    return SUCCEEDED
