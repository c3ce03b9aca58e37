"""The machines of a gang as their controller sees them: what it wants of each, and how each says it is."""

import asyncio
import contextlib
import hashlib
import hmac
import ssl
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from torchyard.agents.server import Application, Intake
from torchyard.api.files import read_regular
from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob, job_document
from torchyard.hosts.mirror import put
from torchyard.hosts.settings import GangSettings, HostSettings, interface_of
from torchyard.hosts.wire import MAX_BYTES, Hello, Orders, PodOrder, Report, receive, send
from torchyard.local.cluster import Pods
from torchyard.local.gang_share import GangShare
from torchyard.local.pod import KILLED
from torchyard.local.pods import LocalPods
from torchyard.local.run import RunFolder, write_atomic
from torchyard.reconcile.actions import CreatePod, DeletePod
from torchyard.reconcile.observed import Pod

SILENT_SECONDS = 30.0
GIVEN_UP_SECONDS = 300.0
HELLO_SECONDS = 10.0
LOOK_SECONDS = 1.0
END_SECONDS = 20.0
"""A node that is asked to end, or to kill its pods, has this long; then it does so when it is reached again."""


class _Known(Struct, frozen=True):
    """A pod of a node: what is wanted, since which revision, and how the node last said it is."""

    order: PodOrder
    revision: int
    view: Pod | None = None


class _State(Struct, frozen=True):
    """`nodes/HOST.json`: written before a node hears of it, so that the next controller knows every pod."""

    revision: int = 0
    pods: dict[str, _Known] = {}


class Node:
    """One further machine.

    Args:
        settings: of the machine.
        file: where its pods are written down.
        job: the job as it is now.
        changed: called when a pod changed.
        gone: called with the uid of a pod whose object is gone.
    """

    def __init__(
        self,
        settings: HostSettings,
        file: Path,
        job: Callable[[], TrainingJob | None],
        changed: Callable[[], None],
        gone: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.over = False
        self.serving = 0
        self._file, self._job, self._changed, self._gone = file, job, changed, gone
        self._state = _State()
        self._tokens: dict[str, str] = {}
        self._seen = 0.0
        self._silent = False
        self._news = asyncio.Event()
        with contextlib.suppress(OSError, msgspec.DecodeError):
            self._state = msgspec.json.decode(read_regular(file, MAX_BYTES), type=_State)

    @property
    def connected(self) -> bool:
        """Return whether it has reported lately."""
        return time.monotonic() - self._seen < SILENT_SECONDS if self._seen else False

    @property
    def names(self) -> set[str]:
        """Return the names of its pods."""
        return set(self._state.pods)

    @property
    def idle(self) -> bool:
        """Return whether nothing of it lives, as far as is known; nothing is awaited from one that is long silent."""
        if self._seen and time.monotonic() - self._seen > GIVEN_UP_SECONDS:
            return True
        pods = self._state.pods.values()
        return all(pod.view is not None and not pod.view.alive and pod.order.deleted is None for pod in pods)

    def views(self, job_uid: str) -> list[Pod]:  # noqa: ARG002 -- a run has one job
        """Return its pods."""
        return [self._view(known) for known in self._state.pods.values()]

    def create(self, action: CreatePod) -> None:
        """Want a pod."""
        if action.name not in self._state.pods:
            order = PodOrder(str(uuid.uuid4()), action.name, action.index, action.incarnation)
            self._want({**self._state.pods, action.name: _Known(order, self._state.revision + 1)})

    def delete(self, action: DeletePod) -> None:
        """Want a pod no longer."""
        known = self._state.pods.get(action.name)
        if known is not None and known.order.uid == action.uid and known.order.deleted is None:
            order = replace(known.order, deleted=action.grace_seconds)
            fresh = replace(known, order=order, revision=self._state.revision + 1)
            self._want({**self._state.pods, action.name: fresh})
            self._changed()

    def end(self) -> None:
        """Want none of its pods, and the node to end."""
        self.over = True
        self._want({})

    def look_again(self) -> None:
        """Notice that the node has become silent, or answers again."""
        if self._seen and self._silent == self.connected:
            self._silent = not self.connected
            self._changed()

    def owner(self, digest: str) -> str | None:
        """Return the pod whose token has a digest."""
        return next((uid for uid, known in self._tokens.items() if hmac.compare_digest(known, digest)), None)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pods: Path) -> None:
        """Exchange orders and reports for as long as the connection lasts."""
        sending = asyncio.create_task(self._send(writer))
        self.serving += 1
        try:
            while True:
                report = await receive(reader, Report)
                self._seen = time.monotonic()
                for part in report.files:
                    await asyncio.to_thread(put, pods, part)
                self._record(report)
        finally:
            self.serving -= 1
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        while True:
            self._news.clear()
            job = self._job()
            if job is not None:
                orders = tuple(known.order for known in self._state.pods.values())
                document = job_document(job, with_status=False)
                await send(writer, Orders(self._state.revision, document, orders, over=self.over))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENT_SECONDS / 3):
                    await self._news.wait()

    def _record(self, report: Report) -> None:
        self._tokens = report.tokens
        reported = {pod.uid: pod for pod in report.pods}
        pods, gone = {}, []
        for name, known in self._state.pods.items():
            view = reported.get(known.order.uid)
            if view is None and report.revision >= known.revision:
                if known.order.deleted is not None:
                    gone.append(known.order.uid)
                    continue
                view = self._lost(known.order)
            pods[name] = replace(known, view=view or known.view)
        if pods != self._state.pods:
            self._write(replace(self._state, pods=pods))
            for uid in gone:
                self._gone(uid)
            self._changed()
        self.look_again()

    def _want(self, pods: dict[str, _Known]) -> None:
        self._write(_State(self._state.revision + 1, pods))
        self._news.set()

    def _write(self, state: _State) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self._file, msgspec.json.encode(state))
        self._state = state

    def _view(self, known: _Known) -> Pod:
        order = known.order
        view = known.view or Pod(
            uid=order.uid, name=order.name, index=order.index, incarnation=order.incarnation, phase="Pending",
            node=self.settings.name, address=self.settings.address, message=f"waits for {self.settings.name}",
        )  # fmt: skip
        if view.alive and not self.connected and self._seen:
            view = replace(view, phase="Unknown", message=f"{self.settings.name} does not answer")
        return replace(view, deleting=True) if order.deleted is not None else view

    def _lost(self, order: PodOrder) -> Pod:
        return Pod(
            uid=order.uid, name=order.name, index=order.index, incarnation=order.incarnation, phase="Failed",
            node=self.settings.name, address=self.settings.address, exit_code=KILLED, reason=Reason.POD_LOST,
            finished=time.time(), message=f"{self.settings.name} has no such pod any more",
        )  # fmt: skip


class SpreadPods:
    """The pods of a run on several machines: those of this one, and those of the nodes."""

    def __init__(self, local: LocalPods, nodes: list[Node]) -> None:
        self._local, self._nodes = local, nodes

    @property
    def idle(self) -> bool:
        """Return whether nothing lives, as far as is known."""
        return self._local.idle and all(node.idle for node in self._nodes)

    def views(self, job_uid: str) -> tuple[Pod, ...]:
        """Return every pod of the job."""
        found = [*self._local.views(job_uid), *(pod for node in self._nodes for pod in node.views(job_uid))]
        return tuple(sorted(found, key=lambda pod: (pod.index, pod.incarnation)))

    def create(self, job: TrainingJob, action: CreatePod) -> None:
        """Create a pod on its machine."""
        host = action.index * (len(self._nodes) + 1) // job.spec.nodes
        if host == 0:
            self._local.create(job, action)
        else:
            self._nodes[host - 1].create(action)

    def delete(self, action: DeletePod) -> None:
        """Delete a pod where it is."""
        for node in self._nodes:
            if action.name in node.names:
                node.delete(action)
                return
        self._local.delete(action)

    def token_owner(self, token: str) -> str | None:
        """Return the uid of the pod that a token identifies."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        owners = (node.owner(digest) for node in self._nodes)
        return self._local.token_owner(token) or next((uid for uid in owners if uid is not None), None)

    def read_tokens(self) -> None:
        """Load the tokens of this machine's pods; nodes send theirs."""
        self._local.read_tokens()

    async def open(self, url: str) -> None:
        """Take up the pods of this machine; those of nodes are written down, and nodes report how they are."""
        await self._local.open(url)

    async def kill(self) -> None:
        """Kill everything, also on the nodes that answer."""
        for node in self._nodes:
            node.end()
        await self._local.kill()
        await _ended(self._nodes)

    async def close(self) -> None:
        """Stop watching this machine's pods."""
        await self._local.close()


class HostGang:
    """The machines of a run, as its controller has them.

    Args:
        folder: of the run.
        settings: `gang.json`.
    """

    def __init__(self, folder: RunFolder, settings: GangSettings) -> None:
        self._folder, self._settings = folder, settings
        first = settings.hosts[0]
        self.share = GangShare(len(settings.hosts), 0, first.name, first.address, variables=interface_of(first.address))
        self.nodes: list[Node] = []
        self._serving: set[asyncio.Task[None]] = set()

    def spread(
        self,
        local: LocalPods,
        job: Callable[[], TrainingJob | None],
        changed: Callable[[], None],
        gone: Callable[[str], None],
    ) -> Pods:
        """Return the pods of all machines."""
        folder = self._folder.path / "nodes"
        self.nodes = [
            Node(host, folder / f"{number}.json", job, changed, gone)
            for number, host in enumerate(self._settings.hosts[1:], 1)
        ]
        return SpreadPods(local, self.nodes)

    @contextlib.asynccontextmanager
    async def listening(self, app: Application) -> AsyncIterator[None]:
        """Serve agents and nodes at the ports that they know; when left, the nodes of a finished run end."""
        context = _tls(self._settings)
        address = self._settings.hosts[0].address
        async with Intake(app, host=address, port=self._settings.agents_port, tls=context):
            server = await asyncio.start_server(
                self._connected, address, self._settings.nodes_port, ssl=context, limit=MAX_BYTES
            )
            looking = asyncio.create_task(self._look())
            try:
                yield
            finally:
                for node in self.nodes:
                    node.end()
                await _ended(self.nodes)
                looking.cancel()
                server.close()
                for task in self._serving:
                    task.cancel()
                await asyncio.gather(looking, *self._serving, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await receive(reader, Hello)
            node = next((one for one in self.nodes if one.settings.name == hello.host), None)
            if node is not None and hmac.compare_digest(node.settings.token.encode(), hello.token.encode()):
                await node.serve(reader, writer, self._folder.pods)
        except (OSError, TimeoutError):
            pass
        finally:
            writer.close()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for node in self.nodes:
                node.look_again()


async def _ended(nodes: list[Node]) -> None:
    """Wait until the nodes that answer have ended, for a while."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            while any(node.serving for node in nodes):  # noqa: ASYNC110 -- nothing in this process sets an event for it
                await asyncio.sleep(0.1)


def _tls(settings: GangSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.NamedTemporaryFile() as file:  # the library reads files only
        file.write(f"{settings.key}\n{settings.certificate}".encode())
        file.flush()
        context.load_cert_chain(file.name)
    return context
