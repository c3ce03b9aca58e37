"""TrainingSweeps and their trials, as the API server has them."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from torchyard.api.names import SWEEP_UID
from torchyard.api.resource import GROUP, VERSION, TrainingJob
from torchyard.api.validation.parse import metadata_of
from torchyard.client.errors import NotFoundError, TorchYardError
from torchyard.client.remote.jobs import get_pages, jobs_path, typed
from torchyard.client.remote.session import Remote
from torchyard.kubernetes.client.api import MERGE_PATCH
from torchyard.kubernetes.client.errors import NotFound
from torchyard.kubernetes.trial_provenance import TrialProvenance
from torchyard.sweeps.parse import InvalidSweep, parse_sweep
from torchyard.sweeps.resource import PLURAL, TrainingSweep
from torchyard.sweeps.trials import trial_of

EVERYWHERE = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def sweeps_path(remote: Remote, name: str = "") -> str:
    """Return the path of the sweeps of the namespace, or of one of them.

    Raises:
        TorchYardError: this is not a valid name of a sweep.
    """
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{remote.namespace}/{PLURAL}"
    if name and not _NAME.fullmatch(name):
        raise TorchYardError(
            f"{name!r} is not a valid name of a TrainingSweep", "`kubectl get trainingsweeps` lists them"
        )
    return f"{path}/{name}" if name else path


async def get(remote: Remote, name: str) -> TrainingSweep:
    """Return a sweep.

    Raises:
        TorchYardError: it does not exist or cannot be read.
    """
    try:
        answer = await remote.api.request("GET", sweeps_path(remote, name))
    except NotFound as error:
        raise missing(remote, name, error) from error
    sweep = parse_sweep(msgspec.json.decode(answer))
    if isinstance(sweep, InvalidSweep):
        raise TorchYardError(f"sweep {name} is invalid: {sweep.problem}")
    assert sweep is not None, "the API server keeps no object without a name"
    return sweep


async def listed(remote: Remote, *, everywhere: bool = False) -> tuple[list[TrainingSweep], dict[str, str]]:
    """Return the sweeps of the namespace, or of all, by name, and what is wrong with those that cannot be read."""
    try:
        documents = await get_pages(remote, EVERYWHERE if everywhere else sweeps_path(remote))
    except NotFound as error:
        raise missing(remote, "", error) from error
    found: list[TrainingSweep] = []
    damaged: dict[str, str] = {}
    for sweep in map(parse_sweep, documents):
        if isinstance(sweep, InvalidSweep):
            damaged[sweep.metadata.name] = f"is invalid: {sweep.problem}"
        elif sweep is not None:
            found.append(sweep)
    return sorted(found, key=lambda sweep: sweep.metadata.name), damaged


async def trials(remote: Remote, sweep: TrainingSweep) -> dict[int, TrainingJob]:
    """Return the jobs of a sweep's trials by number; a job that no operator created as a trial does not count."""
    provenance = TrialProvenance()
    selector = f"{SWEEP_UID}={sweep.metadata.uid}"
    documents = await get_pages(remote, jobs_path(remote.namespace), labelSelector=selector)
    jobs = [typed(each) for each in documents if _is_trial(provenance, sweep, each)]
    return {trial_of(job).record.number: job for job in jobs}


def _is_trial(provenance: TrialProvenance, sweep: TrainingSweep, document: Mapping[str, Any]) -> bool:
    metadata = metadata_of(document)
    return metadata is not None and provenance.is_trial(sweep, metadata)


async def create(remote: Remote, document: Mapping[str, Any]) -> dict[str, Any]:
    """Create a sweep; the server rejects unknown fields instead of dropping them."""
    params = {"fieldManager": "torchyard", "fieldValidation": "Strict"}
    answer = await remote.api.request("POST", sweeps_path(remote), params=params, body=document)
    kept: dict[str, Any] = msgspec.json.decode(answer)
    return kept


async def set_suspend(remote: Remote, name: str, suspend: bool) -> None:
    """Set `spec.suspend`.

    Raises:
        TorchYardError: there is no such sweep.
    """
    body = {"spec": {"suspend": suspend}}
    try:
        await remote.api.request("PATCH", sweeps_path(remote, name), body=body, content_type=MERGE_PATCH)
    except NotFound as error:
        raise missing(remote, name, error) from error


async def delete(remote: Remote, name: str) -> None:
    """Ask for deletion; the trials go with the sweep.

    Raises:
        TorchYardError: there is no such sweep.
    """
    assert name, "without a name every sweep of the namespace would go"
    try:
        await remote.api.request("DELETE", sweeps_path(remote, name), body={"propagationPolicy": "Background"})
    except NotFound as error:
        raise missing(remote, name, error) from error


def missing(remote: Remote, name: str, error: NotFound) -> TorchYardError:
    """Return the error for a 404: there is no such sweep, or the cluster has no TrainingSweep resource."""
    if error.details.name == name:
        return NotFoundError(f"there is no sweep {name!r} in {remote.where}", "`kubectl get trainingsweeps` lists them")
    return TorchYardError(
        f"TrainingSweeps are not installed in {remote.context}", "`torchyard install` upgrades the operator"
    )
