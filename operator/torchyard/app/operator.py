"""The wiring of one operator process: `reconcile` decides, `kubernetes` and `agents` execute.

Every process keeps its caches warm; the one that holds the lease plans, writes and talks to agents. One that lost the
lease to another ends, since its memory of agents is out of date; one that only could not renew it pauses and continues.
"""

import asyncio
import contextlib
import dataclasses
import logging
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.exposition import generate_latest

from torchyard.agents import server
from torchyard.agents.http import tls
from torchyard.agents.http.admission import raise_descriptor_limit
from torchyard.agents.registry import AgentRegistry
from torchyard.api.resource import TrainingJob
from torchyard.api.status import State, TrainingJobStatus
from torchyard.app import probes
from torchyard.app.job_metrics import JobMetrics
from torchyard.app.job_watch import JobWatch
from torchyard.app.memory_tuning import leave_caches_alone
from torchyard.app.metrics_page import MetricsPage
from torchyard.app.notifier import NOTIFIED_UNTIL, Notifier, Progress, webhook
from torchyard.app.options import Options, site
from torchyard.app.page_server import served
from torchyard.app.probes import Metrics, Readiness
from torchyard.app.reviews import readers_of, tokens_of
from torchyard.app.sweep_controller import SweepController
from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.cache.remembered_nodes import ANNOTATION as NODE_MEMORY
from torchyard.kubernetes.cache.remembered_nodes import RememberedNodes
from torchyard.kubernetes.client.api import Api, Budget
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.kubernetes.cluster import KubeCluster
from torchyard.kubernetes.election import LeaderLabel, Lease, Unelected
from torchyard.kubernetes.invalid_jobs import InvalidJobs
from torchyard.kubernetes.provenance import Provenance
from torchyard.kubernetes.sweeps import Sweeps, Trials
from torchyard.kubernetes.trial_provenance import TrialProvenance
from torchyard.reconcile.loop.controller import Controller, Settings
from torchyard.reconcile.loop.turns import Turns
from torchyard.reconcile.ports import Conflict, Unavailable
from torchyard.schedulers.backends import switched_on

SWEEP_SECONDS = 60.0
REFRESH_SECONDS = 5.0
DRAIN_SECONDS = 8.0
FAREWELL_SECONDS = 3.0
# The budget bounds the writes; jobs that wait for it must not keep others from being reconciled.
SETTINGS = Settings(workers=64, in_flight=512)
# Agents ask this often; at 800 agents a second of interval, all of them together take about a tenth of a core.
SHORTEST_SYNC, LONGEST_SYNC, AGENTS_PER_SECOND = 2.0, 20.0, 800
_log = logging.getLogger(__name__)


class Operator:
    """One operator process.

    Args:
        api: the cluster's API server.
        options: settings.

    Raises:
        ValueError: a setting cannot be used.
    """

    def __init__(self, api: Api, options: Options) -> None:
        if options.notifications is not None:
            webhook(options.notifications.folder)  # it must be usable at the start
        self._options = options
        self._namespaces = options.namespaces
        namespace = options.pod_namespace or api.namespace
        self.readiness = Readiness(
            {
                "crd": "it is not known yet whether the TrainingJob CRD is installed",
                "pods": "they are not listed yet",
                "jobs": "they are not listed yet",
                "lease": "it is not known yet who leads",
            }
        )
        self.metrics = Metrics(
            jobs=self._states,
            depth=lambda: self._controller.depth if self._controller is not None else 0,
            leading=lambda: self.lease.leading,
            counts=self._counts,
        )
        self._api = api.guarded(budget=None, fence=None, observe=self.metrics.requested)
        # The API server's: times that one process writes are compared by another.
        clock = api.time
        provenance = Provenance(clock)
        self.lease: Lease | Unelected = Unelected()
        self._progress = Progress()  # of notifications
        remembered_nodes = RememberedNodes(
            self._api, options.node_memory, clock=clock, leading=lambda: self.lease.leading
        )
        if options.leader_election:
            of = options.lease_namespace or namespace
            self.lease = Lease(
                self._api,
                namespace=of,
                name=options.lease_name,
                identity=options.identity,
                public_key=provenance.public_key,
                learned=provenance.trust,
                notes={NODE_MEMORY: remembered_nodes, NOTIFIED_UNTIL: self._progress},
            )
        self._budget = Budget(rate=options.qps, burst=options.burst)
        writing = api.guarded(budget=self._budget, fence=self.lease.fence, observe=self.metrics.requested)
        self._label = None
        if options.pod_name:
            self._label = LeaderLabel(self._api, namespace=namespace, pod=options.pod_name, fence=self.lease.fence)
        self.jobs, self.sweeps, self._turns = Jobs(), Sweeps(), Turns()
        self._invalid = InvalidJobs(writing, self.jobs, clock=clock)
        self._writing = writing
        self.cluster = KubeCluster(
            writing,
            self.jobs,
            site(options, namespace),
            namespaces=options.namespaces,
            gone=lambda pod_uid: self.registry.forget(pod_uid),  # noqa: PLW0108 -- the registry is made below
            reporter=options.identity,
            schedulers=switched_on(options.schedulers),
            count_claimed_gpus=options.count_claimed_gpus,
            node_notices=options.node_notices,
            remembered_nodes=remembered_nodes,
            provenance=provenance,
            clock=clock,
        )
        self.registry = AgentRegistry(clock, interval=SHORTEST_SYNC, on_news=self.cluster.agent_changed)
        self._tokens = tokens_of(self._api, self.cluster.member, clock)
        self._watch = JobWatch(
            self._api,
            options.context,
            options.namespaces,
            heard=self.jobs.record,
            heard_sweep=self.sweeps.record,
            missing=lambda why: self.readiness.set("crd", why),
        )
        self._job_metrics = JobMetrics(self.jobs, lambda: self.lease.leading, options.job_series, clock)
        self._notifier: Notifier | None = None
        self._controller: Controller | None = None
        self._sweep_controller: SweepController | None = None
        self._looking: asyncio.Task[None] | None = None
        self._intake: server.Intake | None = None
        self._namespace = namespace

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`, then finish running reconciles and release the lease.

        Raises:
            DeposedError: another process leads now.
            OSError: a port is taken.
        """
        work = asyncio.create_task(self._work())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                _log.info("received a signal to stop")
                await self._drain()
        finally:
            for task in (work, stopping):
                task.cancel()
            ended, _ = await asyncio.gather(work, stopping, return_exceptions=True)
            await self._farewell()
        if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
            raise ended

    async def _work(self) -> None:
        options = self._options
        async with contextlib.AsyncExitStack() as stack:
            open_metrics = self._metrics_page if options.metrics == "open" else None
            pages = probes.application(self.readiness, self._watch.stuck, open_metrics)
            await stack.enter_async_context(served(pages, options.probe_port))
            raise_descriptor_limit()
            context = tls.server_context(options.tls_dir)
            app = server.application(self.registry, self._tokens.authenticate, serving=self.cluster.serving)
            if options.metrics == "token":
                page = MetricsPage(self._metrics_page, readers_of(self._api).may_read, app.handle)
                app = dataclasses.replace(app, handle=page.handle)
            intake = server.Intake(app, host=options.intake_host, port=options.intake_port, tls=context)
            self._intake = await stack.enter_async_context(intake)
            async with asyncio.TaskGroup() as group:
                group.create_task(self.lease.run())
                group.create_task(self._await_leader())
                group.create_task(self.cluster.run())
                group.create_task(self._watch.run())
                group.create_task(self._keep_jobs_true())
                group.create_task(self._lead())
                group.create_task(tls.follow(context, options.tls_dir))
                group.create_task(self._refresh())

    # Leading.

    async def _lead(self) -> None:
        """Plan and write whenever this process may."""
        while True:
            await self.lease.acquired()
            term, lapsed = asyncio.create_task(self._govern()), asyncio.create_task(self.lease.lapsed())
            try:
                await asyncio.wait({term, lapsed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (term, lapsed):
                    task.cancel()
                ended, _ = await asyncio.gather(term, lapsed, return_exceptions=True)
                self._controller = self._sweep_controller = self._looking = None
                if self._intake is not None:
                    self._intake.dismiss()
                self.registry.clear()  # the next leader sends other commands under the same revisions
            if isinstance(ended, Exception):
                raise ended
            _log.warning("the lease could not be renewed in time; nothing is written until it is renewed")

    async def _govern(self) -> None:
        """Lead for one term."""
        with contextlib.ExitStack() as handlers:
            await self._reconcile_all(handlers)

    async def _reconcile_all(self, handlers: contextlib.ExitStack) -> None:
        """Reconcile with a new controller: the silence of an agent before this term proves nothing."""
        known, wishes = self.jobs.synced, self._options.notifications
        notifier = Notifier(wishes, self._progress.former, self._api.time) if wishes else None
        controller = Controller(
            self.cluster,
            self.registry,
            clock=self._api.time,
            settings=SETTINGS,
            complete=known.is_set,
            observe=self.metrics.looked,
            done=self._turns.done,
            written=notifier.written if notifier is not None else _no_notification,
        )
        self._controller, self._notifier = controller, notifier
        self._progress.notifier = notifier
        async with asyncio.TaskGroup() as group:
            self._looking = group.create_task(controller.run())
            handlers.enter_context(self.jobs.subscribed(controller.enqueue))
            self._enqueue_all(controller)
            if not known.is_set():
                await known.wait()
                self._enqueue_all(controller)
            self.cluster.remembered_nodes.learn(self.jobs)
            if notifier is not None:
                notifier.catch_up(self.jobs)
                group.create_task(notifier.run())
            # Its decisions need all trials, so it starts when they are known.
            trials = Trials(self._writing, self.jobs, TrialProvenance(self._api.time))
            sweeps = SweepController(
                self._writing, self.sweeps, trials, record=self.cluster.recorder.record, clock=self._api.time
            )
            self._sweep_controller = sweeps
            handlers.enter_context(self.sweeps.subscribed(lambda key, _after: sweeps.enqueue(key)))
            handlers.enter_context(self.jobs.subscribed(self.sweeps.child_changed))
            group.create_task(sweeps.run())
            group.create_task(self._invalid.run())
            if self._label is not None:
                group.create_task(self._label.move_here())

    def _enqueue_all(self, controller: Controller) -> None:
        """Queue every job."""
        for key in self._turns.order(self.jobs):
            controller.enqueue(key)

    async def _await_leader(self) -> None:
        await self.lease.known()
        self.readiness.set("lease")

    async def _drain(self) -> None:
        """Wait for the reconciles under way, and begin no more."""
        self.readiness.set("operator", "it is stopping")
        if self._controller is not None and self._looking is not None:
            await self._controller.close(drop=True)
            if self._sweep_controller is not None:
                await self._sweep_controller.close()
            await asyncio.wait({self._looking}, timeout=DRAIN_SECONDS)

    async def _farewell(self) -> None:
        """Release lease and label; nothing else is written any more."""
        led = self.lease.leading
        for goodbye in (self.lease.release, self._label.take_off if self._label is not None and led else None):
            try:
                async with asyncio.timeout(FAREWELL_SECONDS):
                    if goodbye is not None:
                        await goodbye()
            except (Unavailable, Conflict, Rejected, NotFound, TimeoutError) as error:
                _log.warning(
                    "the lease or the leader label was not released, so the next leader has to wait: %s", error
                )

    # What is there.

    async def _keep_jobs_true(self) -> None:
        """List all jobs once, then repair what the watch missed."""
        await self.cluster.synced()
        self.readiness.set("pods")
        namespaces = self._namespaces or ("",)
        while True:
            try:
                if self.jobs.synced.is_set():
                    await self.jobs.compare(self._api, namespaces)
                    await self._known_sweeps(namespaces)
                    await self.cluster.tracked.sweep()
                    await self.cluster.gang_objects.sweep()
                else:
                    await self.jobs.caught_up(self._api, namespaces)
                    await self._known_sweeps(namespaces)
                    self._know_all()
            except (Unavailable, Rejected, NotFound, Gone) as error:
                if not self.jobs.synced.is_set():
                    self.readiness.set("jobs", f"they cannot be listed: {error}")
                    await asyncio.sleep(1.0)
                    continue
            if self.lease.leading:
                self.cluster.report_forged()
            await asyncio.sleep(SWEEP_SECONDS * random.uniform(0.8, 1.0))  # noqa: S311 -- jitter

    async def _known_sweeps(self, namespaces: Sequence[str]) -> None:
        """List all sweeps, or repair what the watch missed; a cluster without the resource has none."""
        with contextlib.suppress(NotFound):
            if self.jobs.synced.is_set():
                await self.sweeps.compare(self._api, namespaces)
            else:
                await self.sweeps.caught_up(self._api, namespaces)

    def _know_all(self) -> None:
        self.readiness.set("jobs")
        self.jobs.synced.set()
        leave_caches_alone()

    async def _refresh(self) -> None:
        """Follow what changes slowly: the number of agents, and the CA that is sent to them."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            busy = len(self.cluster.tracked) / AGENTS_PER_SECOND
            self.registry.interval = min(LONGEST_SYNC, max(SHORTEST_SYNC, busy))
            try:
                self.cluster.site = await asyncio.to_thread(site, self._options, self._namespace)
            except ValueError as error:
                _log.warning("%s", error)

    # Figures.

    async def _metrics_page(self) -> bytes:
        return generate_latest(self.metrics.registry) + await self._job_metrics.page()

    def _states(self) -> Mapping[str, int]:
        return Counter(job.status.state or State.PENDING for job in self.jobs)

    def _counts(self) -> Iterable[tuple[str, str, float]]:
        yield "torchyard_sweeps", "Sweeps that can be run.", sum(1 for _ in self.sweeps)
        yield "torchyard_pods", "Pods of jobs.", len(self.cluster.tracked)
        yield "torchyard_pods_forged", "Pods that claim to belong to a job.", len(self.cluster.tracked.forged())
        remembered = self.cluster.remembered_nodes.count
        yield "torchyard_nodes_remembered", "Nodes that pods avoid, since they failed jobs.", remembered
        yield "torchyard_api_writes_waiting", "Writes that wait for the budget.", self._budget.waiting
        yield "torchyard_api_write_rate", "Writes a second that the budget allows now.", self._budget.rate
        yield "torchyard_events_dropped_total", "Events that were not written.", self.cluster.recorder.dropped
        if self._notifier is not None:
            yield "torchyard_notifications_sent_total", "Notifications that the receiver has.", self._notifier.sent
            yield "torchyard_notifications_dropped_total", "Notifications given up.", self._notifier.dropped
        yield "torchyard_intake_connections", "Connections of agents.", self._intake.connections if self._intake else 0
        yield "torchyard_intake_held", "Long polls in progress.", self.registry.held
        for name, value in {**vars(self.registry.counters), **vars(self._tokens.counters)}.items():
            yield f"torchyard_intake_{name}_total", f"Intake: {name.replace('_', ' ')}.", value


def _no_notification(_job: TrainingJob, _status: TrainingJobStatus) -> None:
    """Send nothing: the installation names no receiver."""
