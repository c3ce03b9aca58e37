"""Start a run on hosts: check them, send TorchYard and the code, create the run, leave its controller there."""

import hashlib
import json
import platform
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from torchyard.api.resource import TrainingJob, job_document
from torchyard.client.backend import Notice
from torchyard.client.errors import TorchYardError
from torchyard.client.hosts import preflight, setup
from torchyard.client.hosts.code import code_of, requirements_of, without_code
from torchyard.client.hosts.preflight import Probe
from torchyard.client.hosts.reach import addresses
from torchyard.client.hosts.records import HostRun, Member, record, recorded
from torchyard.client.hosts.remote_run import RemoteTorchYard
from torchyard.client.hosts.ssh import Host
from torchyard.client.start import RequestedJob, require_sources
from torchyard.hosts.settings import GangSettings, HostSettings, NodeSettings
from torchyard.hosts.slurm import SlurmSettings
from torchyard.local.gang_share import shares
from torchyard.local.run import run_folder


class Slurm(NamedTuple):
    """An allocation of Slurm, as the command line names it."""

    partition: str
    options: dict[str, str]


class HostOptions(NamedTuple):
    """Where a run is sent, as the command line names it."""

    hosts: tuple[str, ...]
    addresses: tuple[str, ...]
    """At which the others reach each; empty: it is looked for."""
    python: str = "python3"
    home: str = preflight.DEFAULT_HOME
    creates_environment: bool = False
    slurm: Slurm | None = None


class Prepared(NamedTuple):
    """A host that has everything a run needs."""

    host: Host
    report: Probe
    tools: setup.Tools
    folder: str
    """That the run starts in."""

    @property
    def member(self) -> Member:
        """Return the host as it is recorded."""
        return Member(self.host.name, self.report.home.path, self.tools.torchyard)


def start(wanted: RequestedJob, name: str | None, options: HostOptions, notice: Notice) -> HostRun:
    """Start a run on hosts, or continue the unfinished one of its name.

    Raises:
        TorchYardError: a host lacks something, cannot be reached, or refuses the run.
    """
    called = name or wanted.job.metadata.name
    if run_folder(called).job_file.exists():
        raise TorchYardError(
            f"{called!r} is a run of this machine", f"give another name with --name, or `torchyard rm {called}`"
        )
    require_sources(wanted.job)
    _same_hosts(called, options)
    if options.slurm is None:
        wanted = wanted._replace(job=_for_hosts(wanted.job, len(options.hosts)))
    ready = prepare(wanted, options, notice)
    first = ready[0]
    document = {
        "job": job_document(without_code(wanted).job, with_status=False),
        "folder": first.folder,
        "programs": first.tools.programs,
        "name": name,
        "source": wanted.source,
        "isFile": wanted.is_file,
        "elsewhere": len(ready) > 1 or options.slurm is not None,
    }
    answer = RemoteTorchYard(first.member).ask("create", document=document, notice=notice)
    run = HostRun(json.loads(answer)["name"], tuple(each.member for each in ready))
    record(run)
    if options.slurm is not None:
        run = replace(run, slurm=options.slurm.partition)
        record(run)
        _queue(run, first, wanted.job, options.slurm)
        return run
    if len(ready) > 1:
        _form_gang(run, ready, options)
    resume(run)
    return run


def _form_gang(run: HostRun, ready: list[Prepared], options: HostOptions) -> None:
    """Write down on the controller's host which machines form the gang, and how they know each other."""
    from torchyard.client.hosts.certificate import certificate

    found = addresses([each.host for each in ready], [each.report for each in ready], options.addresses)
    hosts = [
        HostSettings(
            _plain(each.host.name), address, secrets.token_urlsafe(32) if number else "",
            each.report.home.path, each.folder, each.tools.programs,
        )
        for number, (each, address) in enumerate(zip(ready, found, strict=True))
    ]  # fmt: skip
    public, private = certificate(found[0])
    document = {"hosts": [msgspec.to_builtins(host) for host in hosts], "certificate": public, "key": private}
    RemoteTorchYard(run.members[0]).ask("gang", run.name, document=document)


def _queue(run: HostRun, login: Prepared, job: TrainingJob, slurm: Slurm) -> None:
    """Queue a run with Slurm."""
    from torchyard.client.hosts.certificate import certificate

    remote, others = RemoteTorchYard(login.member), job.spec.nodes - 1
    found = json.loads(remote.ask("nodes-of", slurm.partition))
    public, private = certificate(*found) if others else ("", "")
    tokens = tuple(secrets.token_urlsafe(32) for _ in range(others))
    settings = SlurmSettings(
        slurm.partition, slurm.options, public, private, tokens, login.folder, login.tools.programs
    )
    remote.ask("queue", run.name, document=msgspec.to_builtins(settings))


def _plain(name: str) -> str:
    """Return the name of a host as a name of a folder."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
    return f"{plain[:40]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}" if plain != name else plain


def prepare(wanted: RequestedJob, options: HostOptions, notice: Notice) -> list[Prepared]:
    """Check every host, and send what it lacks, all at once.

    Raises:
        TorchYardError: a host lacks something, or cannot be reached.
    """
    hosts, spec = [Host(name) for name in options.hosts], wanted.job.spec
    if spec.code is not None and spec.code.requirements is not None and not options.creates_environment:
        what = "spec.code.requirements is installed on hosts into an environment that --uv creates"
        raise TorchYardError(what, "add --uv; or install it there, and add --set code.requirements=null")
    reports = preflight.probe_all(hosts, spec, options.python, options.home)
    pods = shares(spec.nodes, len(hosts)) if options.slurm is None else [[]]
    creates = options.creates_environment
    preflight.require(hosts, reports, spec, [len(each) for each in pods], creates=creates)
    code = code_of(wanted)
    for line in code.bundle.sentences():
        notice(f"torchyard: {line}")

    def one(index: int) -> Prepared:
        host, report = hosts[index], reports[index]
        if creates:
            text = requirements_of(wanted, code, report, notice)
            python = setup.create_environment(host, report, text, trainer=spec.trainer is not None)
            report = preflight.probe(host, spec, python, options.home)
            preflight.require([host], [report], spec, [len(pods[index])], creates=False)
        tools = setup.install(host, report)
        return Prepared(
            host, report, tools, setup.send_folder(host, report, code.archive, code.bundle.digest, _label(code.folder))
        )

    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(one, range(len(hosts))))


def resume(run: HostRun) -> None:
    """Start the controller of a run, and the nodes of its other hosts, where they do not run."""
    first, *others = map(RemoteTorchYard, run.members)
    if run.slurm:
        first.ask("queue", run.name)
        return
    first.ask("detach", run.name)
    if others:
        settings = msgspec.json.decode(first.ask("gang", run.name), type=GangSettings)
        for index, remote in enumerate(others, 1):
            remote.ask("join", document=msgspec.to_builtins(NodeSettings.of(run.name, settings, index)))


def _for_hosts(job: TrainingJob, hosts: int) -> TrainingJob:
    """Return the job with a pod on each host, where it asks for one node."""
    if job.spec.nodes == 1 and hosts > 1:
        job = replace(job, spec=replace(job.spec, nodes=hosts))
    if job.spec.nodes < hosts:
        raise TorchYardError(
            f"the job has {job.spec.nodes} nodes and {hosts} hosts are named", "name fewer hosts, or give more --nodes"
        )
    return job


def _same_hosts(name: str, options: HostOptions) -> None:
    before = recorded(name)
    if before is not None and tuple(member.host for member in before.members) != options.hosts:
        where = ",".join(member.host for member in before.members)
        raise TorchYardError(
            f"the run {name!r} is on {where}", f"`torchyard rm {name}` deletes it there, or give another --name"
        )


def _label(source: Path) -> str:
    """Return the name of the folder that the run starts in: one for each folder of code of each machine."""
    folder = source.parent.resolve() / source.name
    key = hashlib.sha256(f"{platform.node()}:{folder}".encode()).hexdigest()[:8]
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in folder.name)
    return f"{plain[:40] or 'code'}-{key}"
