"""A run in an allocation of Slurm: queued by sbatch, controlled on the first node, with a node on each other by srun.

Run folder and TorchYard are on a file system that login and compute nodes share, as home folders of such clusters are.
"""

import os
import re
import shlex
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from torchyard.api.files import read_regular
from torchyard.api.spec import TrainingJobSpec
from torchyard.hosts.settings import GangSettings, HostSettings
from torchyard.local.run import RunFolder, write_atomic

MARGIN_SECONDS = 30
"""For stopping, beside the grace period of the job, before the time limit."""
MAX_BYTES = 1024 * 1024
_FOREIGN = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "PMI_", "PMIX_", "PMI2_")
_OPTION = re.compile(r"[a-z][a-z-]*")
_OURS = frozenset(
    {"partition", "nodes", "ntasks", "ntasks-per-node", "signal", "requeue", "output", "job-name", "array"}
)


class SlurmSettings(Struct, frozen=True):
    """`slurm.json`: how a run is queued.

    Attributes:
        partition: of the cluster.
        options: of sbatch, by their long names.
        certificate: of the controller, for the addresses of all nodes of the partition, PEM; empty: one node.
        key: of the certificate, PEM.
        tokens: of the further nodes, by their number.
        source: folder that the job starts in.
        programs: folder of `torchrun` and `python` of the workers; None: TorchYard's own.
        job: id of the newest job; empty: none was queued.
    """

    partition: str
    options: dict[str, str]
    certificate: str
    key: str
    tokens: tuple[str, ...]
    source: str
    programs: str | None
    job: str = ""


class SlurmError(ValueError):
    """A command of Slurm failed; its last line."""


def checked_options(options: Mapping[str, str]) -> None:
    """Check options of sbatch.

    Raises:
        ValueError: one is not an option, or belongs to TorchYard.
    """
    for name, value in options.items():
        if not _OPTION.fullmatch(name) or not value.isprintable():
            raise ValueError(f"--slurm: {name}={value} is not an option of sbatch; write it like time=4:00:00")
        if name in _OURS:
            raise ValueError(f"--slurm: {name} is set by TorchYard; leave it out")


def read_slurm(folder: RunFolder) -> SlurmSettings | None:
    """Return how a run is queued; None: it is not a run of Slurm."""
    try:
        return msgspec.json.decode(read_regular(folder.path / "slurm.json", MAX_BYTES), type=SlurmSettings)
    except FileNotFoundError:
        return None


def write_slurm(folder: RunFolder, settings: SlurmSettings) -> None:
    """Write down how a run is queued."""
    write_atomic(folder.path / "slurm.json", msgspec.json.encode(settings))


def addresses_of(partition: str) -> list[str]:
    """Return the addresses of all nodes of a partition.

    Raises:
        SlurmError: there is no such partition.
    """
    names = _output("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%o").split()
    if not names:
        raise SlurmError(f"the cluster has no partition {partition!r}: `sinfo -s` lists them")
    return sorted({_resolved(name) for name in names})


def queue(folder: RunFolder, settings: SlurmSettings, spec: TrainingJobSpec, command: Sequence[str]) -> SlurmSettings:
    """Submit the allocation of a run, unless it is in the queue; return the settings with its id.

    Args:
        folder: of the run.
        settings: `slurm.json`.
        spec: of the job.
        command: that runs on the first node.

    Raises:
        SlurmError: sbatch rejects it.
    """
    if settings.job and state_of(settings.job):
        return settings
    grace = int(float(spec.grace_period)) + MARGIN_SECONDS
    options = {
        "partition": settings.partition,
        "job-name": f"torchyard-{folder.name}",
        "nodes": str(spec.nodes),
        "ntasks-per-node": "1",
        "signal": f"B:TERM@{grace}",
        "output": str(folder.path / "slurm.log"),
        "open-mode": "append",
        **({"gpus-per-node": str(spec.gpus_per_node)} if spec.gpus_per_node else {}),
        **settings.options,
    }
    lines = [
        f"#SBATCH --{name}={shlex.quote(value)}" if value else f"#SBATCH --{name}" for name, value in options.items()
    ]
    script = "\n".join(["#!/bin/sh", *lines, "#SBATCH --requeue", f"exec {shlex.join(command)}", ""])
    printed = _output("sbatch", "--parsable", input_text=script)
    fresh = msgspec.structs.replace(settings, job=printed.strip().partition(";")[0])
    write_slurm(folder, fresh)
    return fresh


def state_of(job: str) -> str:
    """Return the state of a job in the queue, with the reason why it waits; empty: it is not in the queue."""
    try:
        return _output("squeue", "--noheader", f"--jobs={job}", "--format=%T %r").strip()
    except SlurmError:  # an id that the controller has forgotten
        return ""


def requeue(job: str, environment: Mapping[str, str]) -> None:
    """Put a job that is about to reach its time limit into the queue again, in the environment of its allocation.

    Raises:
        SlurmError: Slurm rejects it.
    """
    _output("scontrol", "requeue", job, environment=environment)


def gang_of(settings: SlurmSettings, home: str, job_uid: str) -> GangSettings:
    """Return the gang of this allocation, whose first node is this one.

    Raises:
        SlurmError: Slurm does not name its nodes.
    """
    names = _output("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()
    hosts = [
        HostSettings(name, address_of(name), token, home, settings.source, settings.programs)
        for name, token in zip(names, ("", *settings.tokens), strict=False)
    ]
    with socket.create_server((hosts[0].address, 0)) as one, socket.create_server((hosts[0].address, 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
    return GangSettings(tuple(hosts), *ports, settings.certificate, settings.key, job_uid)


def start_nodes(gang: GangSettings, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command on every node of the allocation but this one."""
    others = [host.name for host in gang.hosts[1:]]
    options = [
        f"--nodes={len(others)}", f"--ntasks={len(others)}", "--ntasks-per-node=1", f"--nodelist={','.join(others)}",
        "--overlap", "--kill-on-bad-exit=0", "--no-kill", "--export=ALL",
    ]  # fmt: skip
    with log.open("ab") as file:
        return subprocess.Popen(["srun", *options, *command], stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def on_every_node(job: str, nodes: int, command: Sequence[str]) -> list[str]:
    """Run a command on every node of a job; return the lines that it prints.

    Raises:
        SlurmError: the job does not run.
    """
    if not state_of(job).startswith("RUNNING"):
        raise SlurmError(f"job {job} does not run: `squeue --jobs={job}` shows its state")
    size = f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"
    return _output("srun", f"--jobid={job}", "--overlap", *size, *command).splitlines()


def address_of(node: str) -> str:
    """Return the address of a node."""
    found = re.search(r"\bNodeAddr=(\S+)", _output("scontrol", "show", "node", node, "--oneliner"))
    return _resolved(found[1] if found else node)


def without_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of workers: with its variables, frameworks would take each of them for a task of Slurm."""
    return {name: value for name, value in environment.items() if not name.startswith(_FOREIGN)}


def _resolved(name: str) -> str:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise SlurmError(f"the address of the node {name} is unknown: {error}") from error


def _output(*command: str, input_text: str = "", environment: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, input=input_text, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SlurmError(
            f"{command[0]} is not on PATH: --slurm works where `sinfo` does; name a login node with --host"
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise SlurmError(f"{command[0]}: {last}")
    return done.stdout
