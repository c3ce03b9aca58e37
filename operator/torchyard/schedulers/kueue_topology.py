"""Kueue's topology-aware scheduling: what a Workload asks for, and what pods need so that Kueue places them.

Kueue chooses a domain (a rack, a block) for each pod when it admits the Workload. Its pods are created with a gate,
which Kueue removes once it has written the labels of the domain into the node selector. It reads the index of a pod
from a label and fills the domains in the order of that index: node ranks are contiguous in each domain.
"""

from collections.abc import Iterable

from torchyard.api.resource import GROUP as OURS
from torchyard.api.spec_placement import Topology
from torchyard.schedulers.protocol import Gang, GangObject, Kind, Manifest, PodChanges

GROUP = "kueue.x-k8s.io"
TOPOLOGY = Kind(GROUP, "v1beta2", "Topology", "topologies", namespaced=False)
GATE = f"{GROUP}/topology"
WORKLOAD_NAME = f"{GROUP}/workload"
POD_SET_LABEL = f"{GROUP}/podset"
INDEX = f"{OURS}/index"  # label of every pod: its index in the gang, which is its node rank
MAX_LEVEL = 63  # characters of a level in a Workload


def requested(gang: Gang, flavors: Iterable[Manifest]) -> Manifest:
    """Return `topologyRequest` of the pod set; empty: no flavor has a topology with the level that the job names.

    Kueue places no slices of an elastic gang by a topology. Without one the pods keep the pod affinity that they have
    without Kueue. Kueue takes one level: if the job names both, `preferred` stays pod affinity.

    Args:
        gang: of the job.
        flavors: the specs of all flavors.
    """
    level = _level(gang.job.spec.scheduling.topology)
    if level is None or gang.job.spec.elastic is not None or not _exists(gang, flavors, level[1]):
        return {}
    return {level[0]: level[1], "podIndexLabel": INDEX}


def pods(there: GangObject, pod_set: str) -> PodChanges:
    """Return the gate, and what Kueue knows the pods by; nothing if Kueue has assigned no topology.

    Args:
        there: the admitted Workload.
        pod_set: name of its pod set.
    """
    assigned = there.at("status", "admission", "podSetAssignments") or ()
    if not any(each.get("name") == pod_set and each.get("topologyAssignment") for each in assigned):
        return PodChanges()
    asked = next((each.get("topologyRequest") for each in there.at("spec", "podSets") or ()), None) or {}
    level = next(((name, asked[name]) for name in ("required", "preferred") if asked.get(name)), None)
    kind, value = level or ("unconstrained", "true")  # a queue whose flavors all have topologies assigns one unasked
    return PodChanges(
        labels={POD_SET_LABEL: pod_set},
        annotations={WORKLOAD_NAME: there.name, f"{GROUP}/podset-{kind}-topology": value},
        spec={"schedulingGates": [{"name": GATE}]},
    )


def _level(topology: Topology | None) -> tuple[str, str] | None:
    if topology is None:
        return None
    if topology.required is not None:
        return ("required", topology.required)
    return ("preferred", topology.preferred) if topology.preferred is not None else None


def _exists(gang: Gang, flavors: Iterable[Manifest], label: str) -> bool:
    used = {flavor.get("topologyName") for flavor in flavors}
    topologies = (each for each in gang.request.sources.get(TOPOLOGY.plural, ()) if each.name in used)
    return len(label) <= MAX_LEVEL and any(
        level.get("nodeLabel") == label for each in topologies for level in each.at("spec", "levels") or ()
    )
