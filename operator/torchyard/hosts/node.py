"""A further machine of a gang: keeps the pods that the controller wants here, and reports how they are.

Its pods live on when it is killed, or when the controller is away; their agents call the controller themselves.
"""

import asyncio
import contextlib
import hashlib
import random
import shutil
import ssl
import time
from pathlib import Path

from msgspec.structs import replace

from torchyard.api.names import SOURCE_FOLDER
from torchyard.api.resource import TrainingJob, read_job
from torchyard.hosts.mirror import Outgoing
from torchyard.hosts.settings import NodeSettings, interface_of
from torchyard.hosts.wire import MAX_BYTES, FilePart, Hello, Orders, Report, receive, send
from torchyard.local.environment import with_programs
from torchyard.local.gang_share import GangShare
from torchyard.local.pods import LocalPods
from torchyard.local.run import RunFolder, read_run, write_atomic, write_job
from torchyard.local.runs import control
from torchyard.reconcile.actions import CreatePod, DeletePod

REPORT_SECONDS = 5.0
LOOK_SECONDS = 0.5
CONNECT_SECONDS = 15.0
PAUSE_SECONDS = 1.0, 15.0
UNNEEDED_SECONDS = 3600.0
"""Without pods, a node that the controller has not called for so long ends."""


def node_folder(settings: NodeSettings) -> RunFolder:
    """Return the folder of the node's part of the run: a run of its own, in a home of its own."""
    return RunFolder(Path(settings.home) / "nodes" / settings.name / "runs" / settings.run)


async def run_node(settings: NodeSettings) -> None:
    """Keep the pods of one machine until the run is over.

    Raises:
        RunBusyError: another process does.
        ValueError: there is no agent to start pods with.
    """
    folder = node_folder(settings)
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for shared in ("cache", "gpus"):  # of all runs of the machine
        (Path(settings.home) / shared).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (folder.home / shared).symlink_to(Path(settings.home) / shared)
    write_atomic(folder.path / "ca.pem", settings.authority.encode())
    with control(folder):
        await _Node(settings, folder).until_over()


class _Node:
    def __init__(self, settings: NodeSettings, folder: RunFolder) -> None:
        self.settings, self.folder = settings, folder
        self.job: TrainingJob | None = None
        self.orders: Orders | None = None
        self.changed = asyncio.Event()
        authority = str(folder.path / "ca.pem")
        self.context = ssl.create_default_context(cafile=authority)
        self.outgoing = Outgoing(folder.pods)
        self.opened = False
        checkpoints = Path(settings.home) / "runs" / settings.run / "checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        share = GangShare(
            settings.hosts,
            settings.index,
            settings.name,
            settings.address,
            checkpoints,
            {"TORCHYARD_CA_FILE": authority, **interface_of(settings.address)},
        )
        self.pods = LocalPods(
            folder,
            job=lambda: self.job,
            changed=self.changed.set,
            gone=lambda _uid: None,
            trouble=lambda _sentence: None,
            share=share,
        )

    async def until_over(self) -> None:
        """Follow orders through cut connections, until they say that the run is over."""
        pause, alone_since = PAUSE_SECONDS[0], time.monotonic()
        try:
            while self.orders is None or not self.orders.over:
                begun = time.monotonic()
                with contextlib.suppress(OSError, TimeoutError):
                    await self._connected()
                if self.orders is not None and self.orders.over:
                    break
                if time.monotonic() - begun > PAUSE_SECONDS[1]:
                    pause, alone_since = PAUSE_SECONDS[0], time.monotonic()
                if not self.pods.alive and time.monotonic() - alone_since > UNNEEDED_SECONDS:
                    return
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 -- no secret
                pause = min(2 * pause, PAUSE_SECONDS[1])
            await self.pods.kill()
        finally:
            await self.pods.close()

    async def _connected(self) -> None:
        """Exchange messages over one connection, until it is cut or the run is over."""
        settings = self.settings
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                settings.controller, settings.nodes_port, ssl=self.context, limit=MAX_BYTES
            )
        try:
            await send(writer, Hello(settings.name, settings.token))
            self.outgoing.again()
            reporting = asyncio.create_task(self._report(writer))
            try:
                while True:
                    async with asyncio.timeout(4 * REPORT_SECONDS + 10):
                        orders = await receive(reader, Orders)
                    await self._follow(orders)
                    if orders.over:
                        await self.pods.kill()
                        await send(writer, await self._now())
                        return
            finally:
                reporting.cancel()
                await asyncio.gather(reporting, return_exceptions=True)
        finally:
            writer.close()

    async def _follow(self, orders: Orders) -> None:
        """Create and delete pods until they are those that are wanted."""
        self.job = self._here(read_job(orders.job))
        if not self.opened:
            for folder in (self.folder.pods, self.folder.cache):
                folder.mkdir(parents=True, exist_ok=True)
            await self.pods.open(f"https://{self.settings.controller}:{self.settings.agents_port}")
            self.pods.read_tokens()
            await asyncio.to_thread(_delete_former, self.folder, self.job)
            self.opened = True
        wanted = {order.uid: order for order in orders.pods}
        for pod in list(self.pods.by_name.values()):
            order = wanted.get(pod.record.uid)
            grace = 0.0 if order is None else order.deleted
            if grace is not None:
                self.pods.delete(DeletePod(uid=pod.record.uid, name=pod.record.name, grace_seconds=grace, why=""))
        for order in orders.pods:
            if order.deleted is None and order.name not in self.pods.by_name:
                action = CreatePod(name=order.name, index=order.index, incarnation=order.incarnation)
                self.pods.create(self.job, action, order.uid)
        self.orders = orders
        self.changed.set()

    def _here(self, job: TrainingJob) -> TrainingJob:
        """Return the job as it starts on this machine: its folder and its programs have other paths."""
        annotations = {**job.metadata.annotations, SOURCE_FOLDER: self.settings.source}
        job = replace(job, metadata=replace(job.metadata, annotations=annotations))
        programs = self.settings.programs
        return job if programs is None or job.spec.trainer is not None else with_programs(job, Path(programs))

    async def _report(self, writer: asyncio.StreamWriter) -> None:
        """Report every change at once, files twice a second, and otherwise that the node lives."""
        reported = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.changed.wait()
            if self.orders is None:
                continue
            files = await asyncio.to_thread(self.outgoing.look)
            if files or self.changed.is_set() or time.monotonic() - reported > REPORT_SECONDS:
                self.changed.clear()
                await send(writer, await self._now(files))
                reported = time.monotonic()

    async def _now(self, files: tuple[FilePart, ...] = ()) -> Report:
        assert self.orders is not None
        assert self.job is not None
        tokens = {uid: hashlib.sha256(token.encode()).hexdigest() for uid, token in self.pods.tokens.items()}
        return Report(self.orders.revision, self.pods.views(self.job.metadata.uid), tokens, files)


def _delete_former(folder: RunFolder, job: TrainingJob) -> None:
    """Write the job down; delete the logs of a former one of its name, whose pods are gone."""
    with contextlib.suppress(ValueError):
        former = read_run(folder)
        if former is not None and former.metadata.uid != job.metadata.uid:
            for pod in folder.pods.iterdir():
                if not (pod / "pod.json").exists():
                    shutil.rmtree(pod, ignore_errors=True)
    write_job(folder, job)
