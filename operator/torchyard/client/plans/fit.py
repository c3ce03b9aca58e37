"""Whether the nodes have capacity for a gang now, whether they ever can, and which pods hold the GPUs. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec
from msgspec import Struct

from torchyard.api.launch import fewest_nodes
from torchyard.api.reasons import Reason, say
from torchyard.api.resource import KIND, TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.values import amount, plural, since
from torchyard.kubernetes.cache.nodes import number
from torchyard.kubernetes.diagnostics import node_fit
from torchyard.kubernetes.diagnostics.capacity import Resource, Room, cores, gibibytes, gpus, room
from torchyard.kubernetes.manifests.pod import affinity, asked
from torchyard.kubernetes.objects import Container, KubePod, Node, PodSpec

MAX_HOLDERS = 20
PLENTY = 10**6  # pods that request nothing fit anywhere
Amounts = Mapping[str, Decimal]
RESOURCES = {
    "GPU": Resource(lambda limits: limits.gpu, gpus),
    "CPU": Resource(lambda limits: limits.cpu, cores),
    "memory": Resource(lambda limits: limits.memory, gibibytes),
}


class Fit(Struct, frozen=True, kw_only=True, rename="camel"):
    """Whether the nodes have capacity for a gang.

    Attributes:
        now: on what is free; None: not known.
        ever: on the nodes if they were empty; None: not known.
        needed: pods that a round needs.
        fitting: pods of the job that fit now; None: not known.
        sentence: the answer in words.
    """

    now: bool | None
    ever: bool | None
    needed: int
    fitting: int | None
    sentence: str


class Holder(Struct, frozen=True, kw_only=True, rename="camel"):
    """An owner of pods with GPUs. `eta_seconds`: until a job ends by its own forecast; None: it has none."""

    namespace: str
    kind: str
    name: str
    gpus: int
    state: str = ""
    eta_seconds: int | None = None


def requests(spec: TrainingJobSpec) -> dict[str, Decimal]:
    """Return what each pod of a job requests: GPUs, cores and bytes."""
    quantities = {"GPU": spec.gpus_per_node, "CPU": spec.resources.cpu, "memory": spec.resources.memory}
    return {name: amount(quantity) if quantity is not None else Decimal(0) for name, quantity in quantities.items()}


def fit(job: TrainingJob, nodes: Sequence[Node] | None, pods: Sequence[KubePod] | None) -> Fit:
    """Return whether the gang of a job fits. What its own pods hold counts as free for it.

    Args:
        job: to be submitted.
        nodes: of the cluster; None: they could not be read.
        pods: of all namespaces; None: they could not be read.
    """
    needed, ask = fewest_nodes(job.spec), requests(job.spec)
    if nodes is None:
        return Fit(now=None, ever=None, needed=needed, fitting=None, sentence="Not known: nodes could not be read.")
    demands = node_fit.demands(_pod_spec(job))
    usable = [node for node in node_fit.admitting(nodes, demands) if node.ready]
    if not usable:
        code, evidence = node_fit.reason(nodes, demands)
        reason = Reason.of(code)
        words = say(reason, evidence) if reason is not None else "the nodes that the job may use are not ready"
        return Fit(now=False, ever=None, needed=needed, fitting=0, sentence=f"Not now: {words}.")
    capacity = {node.metadata.name: _capacity(node) for node in usable}
    if _count(capacity.values(), ask) < needed:
        words = _shortage(ask, needed, capacity, capacity)
        return Fit(now=False, ever=False, needed=needed, fitting=0, sentence=f"Never on these nodes: {words}.")
    if pods is None:
        sentence = "Not known: pods of other namespaces could not be read. The nodes are large enough."
        return Fit(now=None, ever=True, needed=needed, fitting=None, sentence=sentence)
    free = _free(job, capacity, pods)
    fitting = _count(free.values(), ask)
    if fitting >= needed:
        rooms = sum(1 for each in free.values() if _count([each], ask))
        sentence = f"Yes: {plural(rooms, 'node')} {'has' if rooms == 1 else 'have'} capacity for it."
        return Fit(now=True, ever=True, needed=needed, fitting=min(fitting, PLENTY), sentence=sentence)
    words = _shortage(ask, needed, capacity, free)
    return Fit(now=False, ever=True, needed=needed, fitting=fitting, sentence=f"Not now: {words}.")


def holders(pods: Iterable[KubePod], jobs: Iterable[TrainingJob], now: float) -> list[Holder]:
    """Return who holds GPUs, the next to end first, those without a forecast last.

    Args:
        pods: that could be read.
        jobs: that could be read.
        now: unix seconds.
    """
    held: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for pod in pods:
        if (count := int(_used(pod)["GPU"])) and pod.spec.node_name and _runs(pod):
            owner = pod.metadata.controller
            kind, name = (owner.kind, owner.name) if owner is not None else ("Pod", pod.metadata.name)
            held[(pod.metadata.namespace, kind, name)] += count
    known = {(KIND, *job.key): job for job in jobs}
    found = []
    for (namespace, kind, name), count in held.items():
        job = known.get((kind, namespace, name))
        found.append(
            Holder(
                namespace=namespace,
                kind=kind,
                name=name,
                gpus=count,
                state=str(job.status.state) if job is not None else "",
                eta_seconds=_eta(job, now) if job is not None else None,
            )
        )

    def order(each: Holder) -> tuple[bool, int, int, str, str]:
        return each.eta_seconds is None, each.eta_seconds or 0, -each.gpus, each.namespace, each.name

    return sorted(found, key=order)[:MAX_HOLDERS]


def _eta(job: TrainingJob, now: float) -> int | None:
    left = job.status.progress.eta_seconds
    return None if left is None else max(0, round(since(job.status.last_update_time, now) + left - now))


def _pod_spec(job: TrainingJob) -> PodSpec:
    """Return the part of the pod's spec that decides on which nodes it may run."""
    document = {
        "nodeSelector": dict(job.spec.scheduling.node_selector),
        "affinity": affinity(job),
        "tolerations": asked(job.spec),
    }
    return msgspec.convert(document, PodSpec)


def _capacity(node: Node) -> dict[str, Decimal]:
    return {name: number(resource.of(node.status.allocatable)) for name, resource in RESOURCES.items()}


def _free(job: TrainingJob, capacity: Mapping[str, Amounts], pods: Iterable[KubePod]) -> dict[str, dict[str, Decimal]]:
    free = {name: dict(amounts) for name, amounts in capacity.items()}
    for pod in pods:
        there = free.get(pod.spec.node_name)
        if there is None or not _runs(pod) or _is_of(pod, job):
            continue
        for name, used in _used(pod).items():
            there[name] = max(Decimal(0), there[name] - used)
    return free


def _runs(pod: KubePod) -> bool:
    return pod.status.phase not in {"Succeeded", "Failed"}


def _is_of(pod: KubePod, job: TrainingJob) -> bool:
    owner = pod.metadata.controller
    return owner is not None and owner.is_job(name=job.metadata.name) and pod.metadata.namespace == job.key[0]


def _used(pod: KubePod) -> dict[str, Decimal]:
    """Return what a pod requests: the sum over its containers, or what one of its init containers needs."""
    found = {}
    for name, resource in RESOURCES.items():
        run = sum((_request(each, resource) for each in pod.spec.containers), Decimal(0))
        begin = max((_request(each, resource) for each in pod.spec.init_containers or ()), default=Decimal(0))
        found[name] = max(run, begin)
    return found


def _request(container: Container, resource: Resource) -> Decimal:
    given = container.resources.requests if container.resources is not None else None
    return number(resource.of(given)) if given is not None else Decimal(0)


def _count(nodes: Iterable[Amounts], ask: Amounts) -> int:
    """Return how many pods fit on these nodes together."""
    limited = {name: each for name, each in ask.items() if each > 0}
    return sum(min((int(node[name] // each) for name, each in limited.items()), default=PLENTY) for node in nodes)


def _shortage(ask: Amounts, pods: int, capacity: Mapping[str, Amounts], free: Mapping[str, Amounts]) -> str:
    """Return which resource is short, in the words of the operator; the scarcest first."""
    for name, resource in RESOURCES.items():
        rooms = [Room(has=capacity[node][name], free=free[node][name]) for node in capacity]
        if ask[name] > 0 and sum(int(each.free // ask[name]) for each in rooms) < pods:
            return room(resource, ask[name], pods, rooms)[1]
    return "each resource is free, but not enough of all on the same nodes"
