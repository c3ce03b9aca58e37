"""The `Cluster` port of the reconciler on Kubernetes: cached reads that include our writes, guarded writes."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

import msgspec

from torchyard.api.launch import checkpoint_claim, is_agentless
from torchyard.api.reasons import Reason, say
from torchyard.api.resource import TrainingJob, status_document, with_columns
from torchyard.api.status import Images, TrainingJobStatus
from torchyard.kubernetes.cache.gang_objects import SOON_SECONDS, GangObjects
from torchyard.kubernetes.cache.jobs import Jobs, job_path, replace_status
from torchyard.kubernetes.cache.pod_record import PodRecord, read
from torchyard.kubernetes.cache.pods import Pods
from torchyard.kubernetes.cache.profiles import Profiles
from torchyard.kubernetes.cache.remembered_nodes import RememberedNodes
from torchyard.kubernetes.claim_gpus import ClaimGpus
from torchyard.kubernetes.client.api import METADATA_OF_ONE, UNCHECKED, Api
from torchyard.kubernetes.client.errors import AlreadyExists, Conflict, Gone, NotFound, Rejected
from torchyard.kubernetes.companions import PREDECESSOR_SECONDS, Companions
from torchyard.kubernetes.diagnostics.admission import altered, forbidden, refused
from torchyard.kubernetes.event_recorder import Recorder
from torchyard.kubernetes.gang_writes import GangWrites
from torchyard.kubernetes.kueue_queues import KueueQueues
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.names import Site
from torchyard.kubernetes.manifests.pod import images as pod_images
from torchyard.kubernetes.manifests.pod import pod as pod_manifest
from torchyard.kubernetes.manifests.pod import program as pod_program
from torchyard.kubernetes.manifests.pod import template as pod_template
from torchyard.kubernetes.objects import KubePod, Seen
from torchyard.kubernetes.provenance import Provenance
from torchyard.reconcile.actions import CreatePod, DeletePod, EmitEvent
from torchyard.reconcile.code import Program
from torchyard.reconcile.node_memory import MAX_AVOIDED, NodeMemory
from torchyard.reconcile.observed import Pod
from torchyard.reconcile.ports import Key, NameTaken, Refused, Unavailable
from torchyard.reconcile.profile import NO_PROFILE, ProfileVerdict
from torchyard.reconcile.scheduling import enforced_by
from torchyard.schedulers.none import BY_OPERATOR, NOTHING, choose
from torchyard.schedulers.protocol import Change, Request, Scheduler

CONFIRM_SECONDS = 5.0
MAX_REPORTS = 20  # of forged pods at a time

_log = logging.getLogger(__name__)


class KubeCluster:
    """Jobs, pods and events of one API server.

    Args:
        api: for writes: within the budget, behind the fence.
        jobs: as they were seen; notified of what belongs to them: a pod, a node under it, an agent.
        site: what every pod of this installation shares; may be replaced when the intake's certificates are.
        namespaces: the watched ones; none: all.
        gone: called with the uid of a pod whose object is gone.
        reporter: name of this operator process.
        schedulers: gang schedulers that may be used, the preferred one first.
        node_notices: taints and conditions of nodes that announce that they leave; (): nodes are not watched.
        remembered_nodes: those that failed jobs; None: jobs do not learn from each other.
        count_claimed_gpus: whether GPUs in claims are counted by their templates, which is a further right.
        provenance: signs our pods and recognizes them; None: one that knows only its own.
        clock: unix seconds.
    """

    def __init__(
        self,
        api: Api,
        jobs: Jobs,
        site: Site,
        *,
        namespaces: Iterable[str] = (),
        gone: Callable[[str], None] = lambda _uid: None,
        reporter: str = "",
        schedulers: Sequence[Scheduler] = (),
        count_claimed_gpus: bool = False,
        remembered_nodes: RememberedNodes | None = None,
        node_notices: Collection[str] = (),
        provenance: Provenance | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.site = site
        self.jobs = jobs
        self.provenance = provenance or Provenance(clock)
        self.tracked = Pods(
            api,
            namespaces,
            made=self._created_by_operator,
            changed=jobs.notify,
            gone=self._forget,
            notices=node_notices,
            clock=clock,
        )
        self.recorder = Recorder(api, reporter=reporter, clock=clock)
        self.gang_objects = GangObjects(
            api, namespaces, schedulers, changed=jobs.notify, source_changed=self._source_changed
        )
        self.profiles = Profiles(api, jobs, changed=jobs.notify)
        self._queues = KueueQueues(api, jobs, self.gang_objects, changed=jobs.notify, clock=clock)
        self._gang_writes = GangWrites(api, self.gang_objects)
        self._api, self._gone = api, gone
        self.remembered_nodes = remembered_nodes or RememberedNodes(api, 0.0, clock=clock)
        self._companions = Companions(api, clock)
        self._claim_gpus = ClaimGpus(api if count_claimed_gpus else None, clock)
        self._reported: set[str] = set()  # uids of forged pods
        self._pod = msgspec.json.Decoder(KubePod)
        self._seen = msgspec.json.Decoder(Seen)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unconfirmed: dict[str, int] = {}  # by job uid: the newest version of a pod that we wrote

    async def run(self) -> None:
        """Follow pods and write events until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.tracked.run())
                group.create_task(self.gang_objects.run())
                group.create_task(self.profiles.run())
                group.create_task(self._queues.run())
                group.create_task(self.recorder.run())
                group.create_task(self.remembered_nodes.run())
        finally:
            for task in self._tasks:
                task.cancel()

    async def synced(self) -> None:
        """Return once all pods and the served schedulers are known; nothing may be planned before."""
        await self.tracked.synced()
        await self.gang_objects.discovered.wait()

    # What agents need.

    def serving(self) -> bool:
        """Return whether this process leads and knows its pods: only then it answers agents."""
        return self.jobs.synced.is_set() and self._api.leading

    def member(self, pod_uid: str) -> PodRecord | None:
        """Return a live pod that was created for a job that exists, by namespace, name and uid."""
        record = self.tracked.member(pod_uid)
        if record is None:
            return None
        job = self.jobs.get((record.namespace, record.job_name))
        return record if job is not None and job.metadata.uid == record.job_uid else None

    def agent_changed(self, pod_uid: str) -> None:
        """Notify the job of a pod whose agent has reported something that the plan acts on."""
        record = self.member(pod_uid)
        if record is not None:
            self.jobs.notify((record.namespace, record.job_name))

    # The port `Cluster` of the reconciler.

    @property
    def busy(self) -> bool:
        """Whether writes have to wait for their turn."""
        return self._api.busy

    def job(self, key: Key) -> TrainingJob | None:
        """Return the job as last seen or written, None once it is gone."""
        return self.jobs.get(key)

    def keeps_files(self, job: TrainingJob) -> bool:
        """Return whether checkpoints and exports outlive the pods: on a claim they do."""
        return checkpoint_claim(job.spec) is not None

    def images(self, job: TrainingJob) -> Images:
        """Return the images that a new gang of the job gets."""
        return pod_images(job, self.site)

    def program(self, job: TrainingJob) -> Program | None:
        """Return what the next round of the job runs, where code travels with it."""
        return pod_program(job)

    def pods(self, job_uid: str) -> tuple[Pod, ...]:
        """Return every pod that the operator created for the job of this uid."""
        return self.tracked.of(job_uid)

    def scheduling(self, job: TrainingJob) -> Request:
        """Return the gang scheduler of the job, and its objects as they are in the cache."""
        objects, namespace = self.gang_objects, job.metadata.namespace
        request = choose(
            job.spec.scheduling,
            enforced_by(job.status),
            objects.schedulers,
            objects.served,
            objects.queues(namespace) if objects.schedulers else {},
        )
        if not objects.discovered.is_set() and request.name != NOTHING.name:
            return msgspec.structs.replace(request, known=False)
        if request.kind is None:
            return request
        return msgspec.structs.replace(
            request,
            known=request.known and objects.known(request.scheduler),
            objects=objects.of(job.metadata.uid),
            sources=objects.sources(request.scheduler, namespace),
            template=pod_template(job, self.site),
            queue_position=self._queues.position(job.metadata.uid),
            queue_condition=self._queues.condition(job),
        )

    def profile(self, job: TrainingJob) -> ProfileVerdict:
        """Return what the profile of the job, as its user wrote it, means for it."""
        return self.profiles.effect_on(job) if job.spec.profile is not None else NO_PROFILE

    def node_memory(self) -> NodeMemory:
        """Return what is known of nodes that failed jobs."""
        return self.remembered_nodes.memory

    def report_forged(self) -> None:
        """Log pods that pretend to be a job's; warn the job if it is in the same namespace."""
        forged = [record for record in self.tracked.forged() if record.uid not in self._reported]
        for record in forged[:MAX_REPORTS]:
            self._reported.add(record.uid)
            where = f"pod {record.pod.name} in namespace {record.namespace}"
            _log.warning("%s claims to belong to TrainingJob %s (%s)", where, record.job_name, record.job_uid)
            job = self.jobs.get((record.namespace, record.job_name))
            if job is not None and job.metadata.uid == record.job_uid:
                message = say(Reason.FORGED_POD, f"pod {record.pod.name}")
                self.recorder.record(job, EmitEvent(type="Warning", reason=Reason.FORGED_POD, message=message))

    async def create_pod(self, job: TrainingJob, action: CreatePod) -> None:
        """Create a pod; a pod of that name that is ours is success.

        Raises:
            NameTaken: another pod has the name.
            Refused: the cluster rejects the pod.
            Conflict, Unavailable: to be tried again.
        """
        former = self.tracked.predecessors(job.metadata) if self.keeps_files(job) else []
        if former:  # they may still write into the folder that both have on the claim
            raise Refused(Reason.PREDECESSOR_STOPPING, ", ".join(former[:3]), retry_after=PREDECESSOR_SECONDS)
        avoid = dict.fromkeys((*action.avoid, *self.tracked.leaving_nodes()))
        action = msgspec.structs.replace(action, avoid=tuple(avoid)[:MAX_AVOIDED])
        signature = self.provenance.sign(job.metadata.namespace, job.metadata.uid, action.name)
        try:
            if self.site.network_peers is not None or is_agentless(job.spec):
                await self._companions.ensure(job, self.site)
            gpus = await self._claim_gpus.of(job) if job.spec.resources.claims else 0
            manifest = pod_manifest(job, action, self.site, signature, claimed_gpus=gpus)
            answer = await self._api.request(
                "POST", _pods(job), params=UNCHECKED, body=manifest, accept=METADATA_OF_ONE
            )
            uid = self._seen.decode(answer).metadata.uid
            if (found := altered(manifest["metadata"], answer)) is not None:
                await self._undo(job, action.name, uid)
                raise found
            self.provenance.created(uid, signature)
        except AlreadyExists:
            answer = await self._own(job, action.name)
        except (Rejected, NotFound, Unavailable) as error:
            found = refused(error)
            if found is None:
                raise
            raise found from error
        self._took(job, answer)

    async def delete_pod(self, job: TrainingJob, action: DeletePod) -> None:
        """Ask for deletion; a pod that is already gone, or another one by now, is success.

        Raises:
            Refused: the operator lacks the right.
            Conflict, Unavailable: to be tried again.
        """
        preconditions = {"uid": action.uid}
        version = self.tracked.version(action.uid) if action.if_alive else None
        if version is not None:
            preconditions["resourceVersion"] = str(version)
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": math.ceil(action.grace_seconds),
            "preconditions": preconditions,
        }
        try:
            answer = await self._api.request("DELETE", f"{_pods(job)}/{action.name}", body=options)
        except NotFound:
            self.tracked.forget(action.uid)
        except Conflict:
            if not await self._went(job, action):
                raise
        except Rejected as error:
            raise forbidden(error) or error from error
        else:
            self._took(job, answer)

    async def change_object(self, job: TrainingJob, change: Change) -> None:
        """Create, change or delete an object of a gang scheduler; one that is as wanted already is success.

        Raises:
            Refused: the API server rejects it, or the name belongs to another owner.
            Conflict, Unavailable: to be tried again.
        """
        await self._gang_writes.execute(job, change)

    async def write_status(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        """Replace the status of the job with this uid; a job that is gone is success.

        Raises:
            Conflict: the job changed since it was read; the newest one is in the cache when this is raised.
            Unavailable: to be tried again.
        """
        path, status = job_path(job.key), with_columns(status)
        try:
            answer = await replace_status(self._api, job.metadata, status_document(status))
        except NotFound as error:
            self.jobs.missed(job.key, job.metadata.uid, error)
        except Conflict:
            await self._reread(job, path)
            raise
        except Rejected as error:
            raise forbidden(error) or error from error
        else:
            # The precondition held, so that nothing but the status differs from what we read.
            version = self._seen.decode(answer).metadata.resource_version
            metadata = msgspec.structs.replace(job.metadata, resource_version=version)
            known = self.jobs.get(job.key)
            # The job that is planned has the values of its profile; the cache has what the user wrote.
            same = known is not None and _generation(known) == _generation(job)
            spec = known.spec if known is not None and same else job.spec
            written = msgspec.structs.replace(job, metadata=metadata, spec=spec, status=status)
            self.jobs.written(written)
            if status.attempts != job.status.attempts:
                self.remembered_nodes.learn([written])
                self._explain_loss(job, status)

    async def emit_event(self, job: TrainingJob, event: EmitEvent) -> None:
        """Queue an event of the job; return at once."""
        self.recorder.record(job, event)

    async def delete_job(self, job: TrainingJob) -> None:
        """Delete the job, uid as precondition; one that is gone, or another one by now, is success.

        Raises:
            Refused: the operator lacks the right.
            Conflict, Unavailable: to be tried again.
        """
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": job.metadata.uid},
        }
        try:
            await self._api.request("DELETE", job_path(job.key), body=options)
        except NotFound as error:
            self.jobs.missed(job.key, job.metadata.uid, error)
        except Conflict:
            await self._reread(job, job_path(job.key))
            now = self.jobs.get(job.key)
            if now is not None and now.metadata.uid == job.metadata.uid:
                raise
        except Rejected as error:
            raise forbidden(error) or error from error

    # Writes and caches.

    def _explain_loss(self, before: TrainingJob, after: TrainingJobStatus) -> None:
        """Read the events of the pods that a status names as the cause of a round's end, and the one before did not."""
        known = {each.cause.pod for each in before.status.attempts if each.cause is not None}
        for pod in dict.fromkeys(each.cause.pod for each in after.attempts if each.cause is not None):
            if pod and pod not in known:
                self.tracked.explain_loss(before.metadata.uid, pod)

    async def _went(self, job: TrainingJob, action: DeletePod) -> bool:
        """Return whether a pod is no longer there: it may have changed only, or an admission plug-in had a conflict."""
        try:
            answer = await self._api.request("GET", f"{_pods(job)}/{action.name}")
        except NotFound:
            went = True
        else:
            went = self._pod.decode(answer).metadata.uid != action.uid
        if went:
            self.tracked.forget(action.uid)
        else:
            self.tracked.put(job.metadata.namespace, answer)
        return went

    async def _undo(self, job: TrainingJob, name: str, uid: str) -> None:
        """Delete a pod that would not be seen again; one that cannot be deleted now keeps its name."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        with contextlib.suppress(Unavailable, Rejected, NotFound, Conflict, Gone):
            await self._api.request("DELETE", f"{_pods(job)}/{name}", body=options)

    async def _own(self, job: TrainingJob, name: str) -> bytes:
        """Return the pod of that name, if it is this job's: an earlier answer was lost, or another process made it.

        Raises:
            Refused: the pod is that of a former job of this name, and stops.
            NameTaken: the operator did not create it.
            Conflict: it was deleted since it was read.
        """
        try:
            answer = await self._api.request("GET", f"{_pods(job)}/{name}")
        except NotFound as error:
            raise Conflict(f"pod {name} was deleted while it was read") from error
        pod = self._pod.decode(answer)
        record = read(pod)
        if record is None or record.job_name != job.metadata.name or not self._created_by_operator(record):
            owner = pod.metadata.controller
            whose = f"of {owner.kind} {owner.name}" if owner is not None else "without a controller"
            evidence = f"pod {name} {whose}"
            warning = EmitEvent(type="Warning", reason=Reason.NAME_TAKEN, message=say(Reason.NAME_TAKEN, evidence))
            self.recorder.record(job, warning)
            raise NameTaken(evidence)
        if record.job_uid != job.metadata.uid:
            raise Refused(Reason.PREDECESSOR_STOPPING, name, retry_after=PREDECESSOR_SECONDS)
        return answer

    def _created_by_operator(self, record: PodRecord) -> bool:
        """Return whether the operator created this pod: it is signed, or the status names it as a member of a round.

        The status is out of reach of those who may create pods and jobs, and outlives every key.
        """
        if self.provenance.verifies(record.uid, record.claim):
            return True
        job = self.jobs.get((record.namespace, record.job_name))
        same = job is not None and job.metadata.uid == record.job_uid
        return job is not None and same and record.uid in job.status.rendezvous.members

    def _source_changed(self, scheduler: str) -> None:
        """Notify the jobs of a scheduler that wait: it became usable, or what it places pods by has changed."""
        for job in self.jobs:
            gang, queue = job.status.gang, job.spec.scheduling.queue
            chosen = gang is not None and (gang.enforced_by != BY_OPERATOR.name or queue is None)
            concerned = gang is None or not chosen or (gang.enforced_by == scheduler and not gang.admitted)
            if concerned and not job.is_over:
                self.jobs.notify(job.key, SOON_SECONDS)

    def _forget(self, pod_uid: str) -> None:
        self._reported.discard(pod_uid)
        self.provenance.forget(pod_uid)
        self._gone(pod_uid)

    def _took(self, job: TrainingJob, answer: bytes) -> None:
        """Put our own write into the cache at once; a watch that does not confirm it has stalled."""
        version = self.tracked.put(job.metadata.namespace, answer)
        uid = job.metadata.uid
        if version is None:
            return
        if uid not in self._unconfirmed:
            self._confirm_later(job)
        self._unconfirmed[uid] = max(version, self._unconfirmed.get(uid, 0))

    def _confirm_later(self, job: TrainingJob) -> None:
        position = self.tracked.position(job.metadata.namespace)
        asyncio.get_running_loop().call_later(CONFIRM_SECONDS, self._confirm, job, position)

    def _confirm(self, job: TrainingJob, before: int) -> None:
        position = self.tracked.position(job.metadata.namespace)
        if position >= self._unconfirmed[job.metadata.uid]:
            del self._unconfirmed[job.metadata.uid]
        elif position > before:
            self._confirm_later(job)  # late, and catching up: lists would slow a busy server down even more
        else:
            del self._unconfirmed[job.metadata.uid]
            self._begin(self._refresh(job))

    async def _refresh(self, job: TrainingJob) -> None:
        _log.warning("%s/%s: the watch of pods has stalled; the job's pods are listed", *job.key)
        with contextlib.suppress(Unavailable, Rejected, NotFound, Gone):  # the watch continues in any case
            await self.tracked.refresh(job.metadata.namespace, f"{names.JOB_UID}={job.metadata.uid}", job.metadata.uid)

    async def _reread(self, job: TrainingJob, path: str) -> None:
        """Read the object again: the cache is outdated, and a second try must not fail for the same reason."""
        try:
            self.jobs.put(await self._api.request("GET", path))
        except NotFound as error:
            self.jobs.missed(job.key, job.metadata.uid, error)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _generation(job: TrainingJob) -> tuple[str, int]:
    return job.metadata.uid, job.metadata.generation


def _pods(job: TrainingJob) -> str:
    return f"/api/v1/namespaces/{job.metadata.namespace}/pods"
