"""Which nodes will do: GPUs by the labels of NVIDIA's GPU feature discovery, taints, closeness."""

from collections.abc import Iterable
from typing import Any

from torchyard.api.resource import TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_placement import Gpu, Topology
from torchyard.api.values import amount
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.names import Site

Entry = dict[str, Any]

GPU_PRODUCT = "nvidia.com/gpu.product"
GPU_MEMORY = "nvidia.com/gpu.memory"  # MiB
GPU_MAJOR = "nvidia.com/gpu.compute.major"
GPU_MINOR = "nvidia.com/gpu.compute.minor"
_MIB = 1024 * 1024
_NODE_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_STRONGEST = 100


def affinity(job: TrainingJob, avoid: Iterable[str] = ()) -> Entry:
    """Return node affinity for `gpu` and against the nodes to avoid, and pod affinity for `scheduling.topology`.

    Empty where none of them says anything. A node to avoid is still taken where no other one has room.
    """
    found: Entry = {}
    on_nodes: Entry = {}
    terms = _gpu_terms(job.spec.gpu) if job.spec.gpu is not None else []
    if terms:
        required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
        on_nodes["requiredDuringSchedulingIgnoredDuringExecution"] = required
    others = [{"weight": _STRONGEST, "preference": {"matchFields": [_is_not(node)]}} for node in avoid]
    if others:
        on_nodes["preferredDuringSchedulingIgnoredDuringExecution"] = others
    if on_nodes:
        found["nodeAffinity"] = on_nodes
    topology = job.spec.scheduling.topology
    if topology is not None and (closeness := _closeness(topology, job.metadata.uid)):
        found["podAffinity"] = closeness
    return found


def tolerations(spec: TrainingJobSpec, site: Site) -> list[Entry]:
    """Return the tolerations of the job, and how long a pod tolerates a lost node."""
    found = asked(spec)
    for taint in _NODE_LOST:
        lost = {"key": taint, "operator": "Exists", "effect": "NoExecute"}
        found.append({**lost, "tolerationSeconds": site.lost_node_seconds})
    return found


def asked(spec: TrainingJobSpec) -> list[Entry]:
    """Return the user's tolerations, and the one GPU nodes ask for."""
    found: list[Entry] = []
    for toleration in spec.scheduling.tolerations:
        fields = {
            "key": toleration.key,
            "operator": toleration.operator,
            "value": toleration.value,
            "effect": toleration.effect,
        }
        seconds = toleration.toleration_seconds
        limit: Entry = {"tolerationSeconds": seconds} if seconds is not None else {}
        found.append({name: value for name, value in fields.items() if value} | limit)
    if spec.gpus_per_node:
        found.append({"key": names.GPU, "operator": "Exists", "effect": "NoSchedule"})
    return found


def _gpu_terms(gpu: Gpu) -> list[list[Entry]]:
    """Alternatives, each a list of demands that must all hold; none if nothing is demanded."""
    demands: list[Entry] = []
    if gpu.products:
        demands.append({"key": GPU_PRODUCT, "operator": "In", "values": list(gpu.products)})
    if gpu.min_memory is not None and (least := -(-int(amount(gpu.min_memory)) // _MIB)) > 0:
        demands.append(_more_than(GPU_MEMORY, least - 1))
    if gpu.min_compute_capability is None:
        return [demands] if demands else []
    major, minor = map(int, gpu.min_compute_capability.split("."))
    if minor == 0:
        return [[*demands, _more_than(GPU_MAJOR, max(major, 1) - 1)]]
    same = {"key": GPU_MAJOR, "operator": "In", "values": [str(major)]}
    return [[*demands, _more_than(GPU_MAJOR, major)], [*demands, same, _more_than(GPU_MINOR, minor - 1)]]


def _is_not(node: str) -> Entry:
    return {"key": "metadata.name", "operator": "NotIn", "values": [node]}


def _more_than(label: str, number: int) -> Entry:
    return {"key": label, "operator": "Gt", "values": [str(number)]}


def _closeness(topology: Topology, job_uid: str) -> Entry:
    def near(label: str) -> Entry:
        return {"topologyKey": label, "labelSelector": {"matchLabels": {names.JOB_UID: job_uid}}}

    found: Entry = {}
    if topology.required is not None:
        found["requiredDuringSchedulingIgnoredDuringExecution"] = [near(topology.required)]
    if topology.preferred is not None:
        preferred = {"weight": _STRONGEST, "podAffinityTerm": near(topology.preferred)}
        found["preferredDuringSchedulingIgnoredDuringExecution"] = [preferred]
    return found
