"""Elastic gangs on Kueue: a gang grows by a second Workload that replaces the first one, and shrinks in place.

A gang begins with quota for `elastic.minNodes`. Once it is admitted, it asks for the rest by a slice: a Workload with
the larger count that names the one it replaces. When Kueue admits the slice, it finishes the other one. Kueue admits a
slice as a whole; one that waits longer than `elastic.wait` is replaced by one of half the growth, down to one pod. A
Workload shrinks by its count, once the pods beyond it are gone.

This is the contract of Kueue 0.19 (KEP-77, feature gate ElasticJobsViaWorkloadSlices, on by default). It is being
redesigned to one Workload that is resized; no other file knows it.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from torchyard.api.launch import fewest_nodes
from torchyard.api.values import Time
from torchyard.schedulers.protocol import (
    DIGEST,
    Change,
    CreateObject,
    DeleteObject,
    Gang,
    GangObject,
    Manifest,
    PatchObject,
    Right,
    create,
    digest,
)

ELASTIC = "kueue.x-k8s.io/elastic-job"
REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"
RIGHTS = (Right("kueue.x-k8s.io", "workloads", ("patch",)),)


class _Template(Struct, frozen=True):
    """What all Workloads of a gang have in common; the count of its spec is that of the whole gang."""

    spec: Manifest
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def current(gang: Gang) -> GangObject | None:
    """Return the Workload that counts: the largest with quota, else the one that asks; None: none exists.

    Of a gang that is not elastic, it is the only one.
    """
    if gang.job.spec.elastic is None:
        return gang.object
    return newest(gang.request.objects) or gang.object


def newest(objects: Iterable[GangObject]) -> GangObject | None:
    """Return the Workload of an elastic gang that counts, among those that are not finished; None: there is none."""
    open_ones = [each for each in objects if not each.condition("Finished").holds and not each.deleting]
    reserved = [each for each in open_ones if each.condition("QuotaReserved").holds]
    first = [each for each in open_ones if not _replaced(each)]
    for group in (reserved, first, open_ones):
        if group:
            return max(group, key=lambda each: (count(each), each.name))
    return None


def others(gang: Gang) -> tuple[GangObject, ...]:
    """Return the Workloads beside the current one: a slice that waits, and those that were replaced."""
    there = current(gang)
    return tuple(each for each in gang.request.objects if each != there and not each.deleting)


def count(there: GangObject) -> int:
    """Return the pods that a Workload asks for or has quota for."""
    return sum(int(each.get("count") or 0) for each in there.at("spec", "podSets") or ())


def ask(gang: Gang, spec: Manifest, labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[Change, ...]:
    """Return what to create, change or delete so that the gang gets the quota that it wants.

    Args:
        gang: elastic.
        spec: of the Workload; its count is that of the whole gang.
        labels: of a new Workload.
        annotations: likewise.
    """
    kind, there = gang.request.kind, current(gang)
    if kind is None or not gang.request.known:
        return ()
    job = gang.job.spec
    wanted, fewest = job.nodes + job.spares, fewest_nodes(job) + job.spares
    template = _Template(spec, labels, {**annotations, ELASTIC: "true"})
    if there is None:
        # Pods that live, although their Workload was deleted by hand, keep their quota if it is still there.
        size = max(fewest, min(gang.live_pods, wanted))
        return (_created(gang, gang.name, size, template),)
    if there.deleting:
        return ()
    if not there.condition("QuotaReserved").holds:
        fits = there.at("metadata", "annotations", DIGEST) == _request(spec) and count(there) == fewest
        outdated = () if fits or gang.pods_live else _delete((there,), "it asks for another gang")
        return (*_delete(others(gang), "the Workload that it replaces has no quota"), *outdated)
    return _resize(gang, there, wanted, template)


def shortage(gang: Gang, there: GangObject) -> str:
    """Return for how many pods the current Workload has quota, and why for no more; empty: for all."""
    wanted, granted = gang.job.spec.nodes + gang.job.spec.spares, count(there)
    if granted >= wanted:
        return ""
    why = next((said for each in others(gang) if (said := each.condition("QuotaReserved").message)), "")
    return f", for {granted} of {wanted} pods" + (f": {why}" if why else "")


def forget(gang: Gang, why: str) -> tuple[Change, ...]:
    """Delete all Workloads beside the current one."""
    return _delete(others(gang), why)


def _resize(gang: Gang, there: GangObject, wanted: int, template: _Template) -> tuple[Change, ...]:
    """Return the changes of a gang that has quota."""
    granted, besides = count(there), others(gang)
    replaced = _delete((each for each in besides if each.condition("Finished").holds), "another one replaces it")
    waiting = [each for each in besides if not each.condition("Finished").holds]
    if wanted <= granted:
        surplus = _delete(waiting, "the gang does not grow any more")
        shrunk = _shrink(there, wanted) if gang.live_pods <= wanted < granted else ()
        return (*replaced, *surplus, *shrunk)
    asked = [count(each) for each in waiting]
    if not waiting:
        return (*replaced, _slice(gang, there, wanted, template))
    if len(waiting) > 1 or not granted < asked[0] <= wanted or _replaced(waiting[0]) != _key(gang, there):
        return (*replaced, *_delete(waiting, "the gang asks for another size"))
    if asked[0] > granted + 1 and _waited(gang, waiting[0]):
        smaller = granted + (asked[0] - granted) // 2
        return (
            *replaced,
            *_delete(waiting, "there is no quota for all of it"),
            _slice(gang, there, smaller, template),
        )
    return replaced


def _slice(gang: Gang, there: GangObject, size: int, template: _Template) -> Change:
    """Create a Workload of `size` pods that replaces `there`; its name differs from that of each earlier slice."""
    marks = {**template.annotations, REPLACES: _key(gang, there)}
    return _created(gang, f"{gang.name}-{size}-{there.uid[:8]}", size, replace(template, annotations=marks))


def _shrink(there: GangObject, size: int) -> tuple[Change, ...]:
    pod_sets = [each | {"count": size} for each in there.at("spec", "podSets") or ()]
    return (
        PatchObject(
            kind=there.kind,
            name=there.name,
            uid=there.uid,
            version=there.version,
            patch={"spec": {"podSets": pod_sets}},
            why="the pods beyond it are gone",
        ),
    )


def _created(gang: Gang, name: str, size: int, template: _Template) -> CreateObject:
    """Create a Workload; its digest is that of the gang, whatever its size."""
    assert gang.request.kind is not None
    annotations = {**template.annotations, DIGEST: _request(template.spec)}
    return create(gang, gang.request.kind, _sized(template.spec, size), template.labels, annotations, name=name)


def _sized(spec: Manifest, size: int) -> Manifest:
    return spec | {"podSets": [each | {"count": size} for each in spec["podSets"]]}


def _request(spec: Manifest) -> str:
    return digest(_sized(spec, 0))


def _replaced(there: GangObject) -> str:
    """Return the key of the Workload that a slice replaces; empty: it is no slice."""
    return str(there.at("metadata", "annotations", REPLACES) or "")


def _key(gang: Gang, there: GangObject) -> str:
    return f"{gang.job.metadata.namespace}/{there.name}"


def _waited(gang: Gang, there: GangObject) -> bool:
    elastic, created = gang.job.spec.elastic, there.at("metadata", "creationTimestamp")
    if elastic is None or not created:
        return False
    return gang.now - Time.parse(str(created)) > elastic.wait


def _delete(objects: Iterable[GangObject], why: str) -> tuple[Change, ...]:
    return tuple(
        DeleteObject(kind=each.kind, name=each.name, uid=each.uid, why=why) for each in objects if not each.deleting
    )
