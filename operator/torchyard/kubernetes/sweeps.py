"""TrainingSweeps and their trials on a cluster: their caches, and the writes of their controller."""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from torchyard.api.names import TRIAL, TRIAL_SIGNATURE
from torchyard.api.resource import API_VERSION, GROUP, PLURAL, VERSION, ObjectMeta, TrainingJob, job_document
from torchyard.api.validation.parse import InvalidJob, metadata_of, parse_job
from torchyard.kubernetes.cache.jobs import Jobs, Objects, job_path, object_path
from torchyard.kubernetes.client.api import MERGE_PATCH, UNCHECKED, Api
from torchyard.kubernetes.client.errors import AlreadyExists, Conflict, NotFound, Rejected
from torchyard.kubernetes.trial_provenance import TrialProvenance, signer_of
from torchyard.reconcile.ports import Key, Unavailable
from torchyard.sweeps.codec import sweep_status_document
from torchyard.sweeps.outcomes import Value
from torchyard.sweeps.parse import InvalidSweep, parse_sweep
from torchyard.sweeps.resource import KIND, TrainingSweep, TrialRecord, Unit, trial_number
from torchyard.sweeps.resource import PLURAL as SWEEPS
from torchyard.sweeps.status import TrainingSweepStatus
from torchyard.sweeps.trials import edited, trial_job

MANY_KEYS = 32
KEPT_KEYS = 8
QUOTA = "exceeded quota"
"""In the API server's sentence about a request that a ResourceQuota does not allow."""


class NameTakenError(Exception):
    """The name of a trial belongs to a job that is no trial, or no longer as an operator left it."""


class PredecessorError(Exception):
    """The name of a trial belongs to a job that is being deleted, such as a trial of a former sweep of this name."""


class Sweeps(Objects[TrainingSweep, InvalidSweep]):
    """The sweeps of the cluster; see `Objects`."""

    def __init__(self) -> None:
        super().__init__(SWEEPS, parse_sweep, TrainingSweep)

    async def _read_one(self, api: Api, key: Key, uid: str) -> None:
        """Read the sweep as a list of one: the operator has no right to `get` it, and needs none."""
        namespace, name = key
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{SWEEPS}"
        try:
            answer = await api.request("GET", path, params={"fieldSelector": f"metadata.name={name}"})
        except NotFound as error:
            raise Unavailable(f"{SWEEPS} are not served now: {error}") from error
        items = msgspec.json.decode(answer)["items"]
        if items:
            self.record("MODIFIED", items[0])
        else:
            self.gone(key, uid)


class Trials:
    """The trials of sweeps: read from the cache of jobs, written to the API server.

    Args:
        api: for writes.
        jobs: all jobs of the cluster; answers to writes are put into it.
        provenance: signs trials and recognizes them.
    """

    def __init__(self, api: Api, jobs: Jobs, provenance: TrialProvenance) -> None:
        self._api, self._jobs, self._provenance = api, jobs, provenance
        self._unanswered: dict[Key, Key] = {}

    def keys_for(self, sweep: TrainingSweep) -> list[str]:
        """Return the keys that the status has to name before this process writes a trial.

        Of many, those that a trial is signed by stay, and the newest: a creation may still be on its way.
        """
        ours, before = self._provenance.public_key, sweep.status.trial_keys
        if ours in before:
            return before
        if len(before) >= MANY_KEYS:
            used = {signer_of(job.metadata) for job in self.of(sweep).values()}
            before = [key for key in before if key in used or key in before[-KEPT_KEYS:]]
        return [*before, ours]

    def of(self, sweep: TrainingSweep) -> dict[int, TrainingJob | InvalidJob]:
        """Return the trials of a sweep by number, without jobs of such names that no operator created for it."""
        namespace, name = sweep.key
        owned = (job for job in self._jobs.owned_by(sweep.metadata.uid) if job.metadata.namespace == namespace)
        found = {trial_number(name, job.metadata.name): job for job in owned}
        # The lowest number first: of two jobs with the same signature that one is the trial.
        numbered = sorted(((number, job) for number, job in found.items() if number is not None), key=itemgetter(0))
        return {number: job for number, job in numbered if self._provenance.is_trial(sweep, job.metadata)}

    async def settle(self, sweep: TrainingSweep) -> None:
        """Find out whether a creation without an answer took place, before anything else is decided.

        Raises:
            Unavailable, Rejected, Gone: it could not be read.
        """
        if (job := self._unanswered.get(sweep.key)) is not None:
            await self._jobs.read(self._api, job)
            self.forget(sweep.key)

    def forget(self, sweep: Key) -> None:
        """Forget a sweep that is gone."""
        self._unanswered.pop(sweep, None)

    async def create(self, sweep: TrainingSweep, record: TrialRecord) -> None:
        """Create the job of a trial; one that this sweep has created already is success.

        Where the API server rejects the job twice and would take it without its parameters in between, those are at
        fault: the trial is created as one that failed (`trials.trial_job`).

        Raises:
            NameTakenError: the name belongs to another job.
            PredecessorError: the name belongs to a job that is about to go.
            Rejected, Unavailable, Conflict: it was not created, for another reason than its parameters.
        """
        try:
            await self._create(sweep, trial_job(sweep, record))
        except Rejected as error:
            if QUOTA in error.message:  # what is free may change between two requests
                raise
            template = self._signed(sweep, trial_job(sweep, replace(record, parameters={})))
            try:
                await self._post(sweep, template, dryRun="All")
            except AlreadyExists:
                pass  # said by the request below, too
            except Rejected:
                raise error from None
            try:  # again: a webhook or a role that was away for a moment is no fault of the parameters
                await self._create(sweep, trial_job(sweep, record))
            except Rejected as again:
                await self._create(sweep, trial_job(sweep, replace(record, rejected=str(again))))

    async def _create(self, sweep: TrainingSweep, job: TrainingJob) -> None:
        document = self._signed(sweep, job)
        try:
            answer = await self._post(sweep, document)
        except AlreadyExists:
            answer = await self._own(sweep, job)
        except Unavailable:
            self._unanswered[sweep.key] = (sweep.metadata.namespace, job.metadata.name)
            raise
        else:
            signature = document["metadata"]["annotations"][TRIAL_SIGNATURE]
            self._provenance.spend(signature, str(msgspec.json.decode(answer)["metadata"]["uid"]))
        self._jobs.put(answer)

    def _signed(self, sweep: TrainingSweep, job: TrainingJob) -> dict[str, Any]:
        document = job_document(job, with_status=False)
        annotations = document["metadata"]["annotations"]
        annotations[TRIAL_SIGNATURE] = self._provenance.sign(sweep, job.metadata.name, annotations[TRIAL])
        document["metadata"] |= {"namespace": sweep.metadata.namespace, "ownerReferences": [owner(sweep)]}
        return document

    async def _post(self, sweep: TrainingSweep, document: Mapping[str, Any], **params: str) -> bytes:
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{sweep.metadata.namespace}/{PLURAL}"
        return await self._api.request("POST", path, params=params, body=document)

    async def edit(
        self,
        sweep: TrainingSweep,
        job: TrainingJob,
        *,
        suspend: bool,
        unit: Unit | None = None,
        values: dict[str, Value] | None = None,
    ) -> TrainingJob | InvalidJob | None:
        """Stop or continue a trial, and store the reason in the same write (`trials.edited`); return its job.

        Raises:
            Conflict: the job changed since it was read; the newest one is in the cache when this is raised.
            Rejected, Unavailable: it was not written.
        """
        after = edited(job, suspend=suspend, unit=unit, values=values)
        meta = job.metadata
        record = after.metadata.annotations[TRIAL]
        signature = self._provenance.sign(sweep, meta.name, record, uid=meta.uid)
        body = {
            "metadata": {
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "annotations": {TRIAL: record, TRIAL_SIGNATURE: signature},
            },
            "spec": {"suspend": suspend},
        }
        try:
            answer = await self._api.request("PATCH", job_path(job.key), body=body, content_type=MERGE_PATCH)
        except NotFound as error:
            self._jobs.missed(job.key, meta.uid, error)
            raise Conflict(f"trial {meta.name} is gone") from error
        except Conflict:
            await self._read(job.key, meta.uid)
            raise
        self._jobs.put(answer)
        return parse_job(msgspec.json.decode(answer))

    async def _own(self, sweep: TrainingSweep, job: TrainingJob) -> bytes:
        """Return the job of that name if the sweep created it, as after an answer that was lost."""
        try:
            answer = await self._api.request("GET", job_path(job.key))
        except NotFound as error:
            raise Conflict(f"job {job.metadata.name} was deleted while it was read") from error
        metadata = metadata_of(msgspec.json.decode(answer))
        if metadata is None or not self._provenance.is_trial(sweep, metadata):
            going = metadata is not None and _is_going(metadata, sweep)
            raise PredecessorError(job.metadata.name) if going else NameTakenError(job.metadata.name)
        return answer

    async def _read(self, key: Key, uid: str) -> None:
        try:
            self._jobs.put(await self._api.request("GET", job_path(key)))
        except NotFound as error:
            self._jobs.missed(key, uid, error)


def _is_going(job: ObjectMeta, sweep: TrainingSweep) -> bool:
    """Return whether a job is being deleted, or will be: it is owned by a former sweep of this name."""
    former = any(
        (each.api_version.partition("/")[0], each.kind, each.name) == (GROUP, KIND, sweep.metadata.name)
        and each.uid != sweep.metadata.uid
        for each in job.owner_references
    )
    return former or job.deletion_timestamp is not None


def owner(sweep: TrainingSweep) -> dict[str, Any]:
    """Return the reference that makes a trial go with its sweep."""
    return {
        "apiVersion": sweep.api_version,
        "kind": sweep.kind,
        "name": sweep.metadata.name,
        "uid": sweep.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


async def replace_sweep_status(api: Api, meta: ObjectMeta, status: TrainingSweepStatus) -> bytes:
    """Replace the status of the sweep of this uid and version; return the sweep as it is now.

    Raises:
        Conflict: it is another object, or another version of it.
        NotFound, Gone, Rejected, Unavailable: it was not written.
    """
    identity: Mapping[str, str] = {
        "name": meta.name,
        "namespace": meta.namespace,
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
    }
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": identity,
        "status": sweep_status_document(status),
    }
    path = f"{object_path(SWEEPS, (meta.namespace, meta.name))}/status"
    return await api.request("PUT", path, params=UNCHECKED, body=body)


async def delete_sweep(api: Api, sweep: TrainingSweep) -> None:
    """Delete a sweep; the garbage collector deletes its trials. One that is gone is success.

    Raises:
        Conflict, Rejected, Unavailable: it was not deleted.
    """
    body = {"propagationPolicy": "Background", "preconditions": {"uid": sweep.metadata.uid}}
    try:
        await api.request("DELETE", object_path(SWEEPS, sweep.key), body=body)
    except NotFound:
        return
