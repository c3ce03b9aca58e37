"""Requests about a run of this machine: create it, leave its controller here, send its files."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from importlib.resources import files
from pathlib import Path

import msgspec

from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError
from torchyard.cli.output import say
from torchyard.cli.views.outcome import exit_code
from torchyard.client.artifacts import inside
from torchyard.client.local import find, load, named
from torchyard.local.run import RunFolder, read_run
from torchyard.local.runs import suspend_run

BUSY_SECONDS = 2.0
_OF_LOGIN = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY", "SSH_AUTH_SOCK", "SSH_ASKPASS")


def create() -> int:
    """Create the run that standard input describes, or find the unfinished one; print its name."""
    from torchyard.api.resource import read_job
    from torchyard.client.start import RequestedJob, start
    from torchyard.local.environment import with_programs

    wanted = json.load(sys.stdin)
    job = read_job(wanted["job"])
    if wanted["programs"] is not None and job.spec.trainer is None:
        job = with_programs(job, Path(wanted["programs"]))
    requested = RequestedJob(job, Path(wanted["folder"]), wanted["source"], is_file=wanted["isFile"])
    folder = start(requested, wanted["name"], notice=say, elsewhere=wanted["elsewhere"])
    print(json.dumps({"name": folder.name}))
    return SUCCEEDED


def gang(name: str) -> int:
    """Write the gang that standard input describes into the run, unless it has one; print the one that it has."""
    from torchyard.hosts.settings import GangSettings, read_gang
    from torchyard.local.run import write_atomic

    folder, proposed = find(name), sys.stdin.buffer.read()
    if (settings := read_gang(folder.path)) is None:
        document = json.loads(proposed)
        first, second = _free_ports(document["hosts"][0]["address"])
        ports = {"agents_port": first, "nodes_port": second, "job_uid": load(folder).job.metadata.uid}
        settings = msgspec.convert({**document, **ports}, GangSettings)
        write_atomic(folder.path / "gang.json", msgspec.json.encode(settings))
    print(msgspec.json.encode(settings).decode())
    return SUCCEEDED


def join() -> int:
    """Start the node that standard input describes in the background; nothing if it runs."""
    from torchyard.hosts.node import node_folder
    from torchyard.hosts.settings import NodeSettings
    from torchyard.local.run import write_atomic

    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=NodeSettings)
    other = read_run(RunFolder(Path(settings.home) / "runs" / settings.run))
    if other is not None and other.metadata.uid != settings.job_uid:
        fix = f"give the new run another --name, or delete that one there with `torchyard rm {settings.run}`"
        raise RefusalError(f"{settings.name} has another run {settings.run!r}", fix, FAILED)
    folder = node_folder(settings).path
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(folder / "node.json", msgspec.json.encode(settings))
    _supervise(folder, "node", str(folder / "node.json"))
    return SUCCEEDED


def detach(name: str) -> int:
    """Start the controller of a run in the background, to live on without a terminal; nothing if it has one."""
    run = load(find(name))
    if not run.job.status.state.terminal:
        suspend_run(run.folder, suspend=False)
        _supervise(run.folder.path, "control", name)
    return SUCCEEDED


def _supervise(folder: Path, *request: str) -> None:
    """Start a request that is started again when it is killed, and lives on without a terminal."""
    supervisor = str(files("torchyard.hosts").joinpath("supervisor.py"))
    command = [sys.executable, "-P", "-m", "torchyard.cli.hosted", *request]
    with (folder / "supervisor.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor, str(folder / "supervisor.lock"), *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True, cwd="/",
            env={name: value for name, value in os.environ.items() if name not in _OF_LOGIN},
        )  # fmt: skip


def _free_ports(address: str) -> tuple[int, int]:
    with socket.create_server((address, 0)) as one, socket.create_server((address, 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def node(file: str) -> int:
    """Keep the pods of one further host of a gang."""
    from torchyard.hosts.node import run_node
    from torchyard.hosts.settings import read_node
    from torchyard.local.runs import RunBusyError

    while True:
        try:
            asyncio.run(run_node(read_node(Path(file))))
        except RunBusyError:  # a node whose supervisor was killed
            time.sleep(BUSY_SECONDS)
        else:
            return SUCCEEDED


def control(name: str) -> int:
    """Control a run until it is over; SIGTERM saves and stops it."""
    from torchyard.client.run_log import log_to_run_folder
    from torchyard.hosts.nodes import HostGang
    from torchyard.hosts.settings import read_gang
    from torchyard.local.controller import run_job
    from torchyard.local.runs import RunBusyError

    folder = find(name)
    settings = read_gang(folder.path)

    async def until_over() -> int:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        gang = HostGang(folder, settings) if settings is not None else None
        return exit_code(await run_job(folder, stop=stop, gang=gang))

    with log_to_run_folder(folder):
        while True:
            try:
                return asyncio.run(until_over())
            except RunBusyError:  # a controller whose supervisor was killed
                time.sleep(BUSY_SECONDS)
                if load(folder).job.status.state.terminal:
                    return SUCCEEDED


def leave(name: str) -> int:
    """Delete this host's part of a run that is deleted."""
    from torchyard.local.run import home_folder
    from torchyard.local.runs import remove_run

    if (folder := node_home(name)) is not None:
        remove_run(folder)
    files = home_folder() / "runs" / name
    if not (files / "job.yaml").exists():  # of a run of that name that was started there, otherwise
        shutil.rmtree(files, ignore_errors=True)
    return SUCCEEDED


def node_home(name: str) -> RunFolder | None:
    """Return the folder of this host's part of a run; None: this host has the controller."""
    from torchyard.hosts.settings import read_gang
    from torchyard.local.run import home_folder

    node = os.environ.get("SLURMD_NODENAME", "*")
    gang = read_gang(named(name).path)
    if gang is not None and node in {"*", gang.hosts[0].name}:
        return None
    paths = list(home_folder().glob(f"nodes/{node}/runs/{named(name).name}/ca.pem"))
    return RunFolder(paths[0].parent) if paths else None


def send(name: str, wanted: str) -> int:
    """Write a file or folder of the checkpoint folder to standard output, as a tar."""
    from torchyard.client.artifacts import artifacts_of, there

    root = Path(os.path.realpath(find(name).checkpoints))
    source = Path(os.path.realpath(root / inside(wanted)))
    if not source.is_relative_to(root) or not source.exists():
        raise RefusalError(f"the run {name!r} has no {wanted}", there([one.path for one in artifacts_of(root)], name))
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        archive.add(source, arcname="fetched")
    return SUCCEEDED
