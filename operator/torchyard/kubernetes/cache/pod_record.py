"""A pod as the plan sees it, and what else the cache keeps of it."""

from msgspec import Struct

from torchyard.api.reasons import Reason
from torchyard.api.status import Images
from torchyard.api.values import Time
from torchyard.kubernetes.client.api import version
from torchyard.kubernetes.diagnostics import container_waiting, image_pull, termination
from torchyard.kubernetes.diagnostics.node_fit import Demands, demands
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.objects import KubePod, ResourceLimits
from torchyard.kubernetes.provenance import Claim
from torchyard.reconcile.observed import Pod, PodPhase

MAX_DIGEST, MAX_IMAGE = 64, 512
OVERDUE_SECONDS = 2.0
UNSTARTED_SECONDS = 8.0
PLACEMENT = frozenset(
    {
        Reason.NO_MATCHING_NODE,
        Reason.UNTOLERATED,
        Reason.NODES_CORDONED,
        Reason.INSUFFICIENT_GPU,
        Reason.INSUFFICIENT_CPU,
        Reason.INSUFFICIENT_MEMORY,
    }
)


class PodRecord(Struct, frozen=True, kw_only=True, gc=False):
    """One pod of one job. Times are unix seconds."""

    uid: str
    version: int
    whole: bool = True  # not only what its metadata says
    namespace: str
    job_name: str
    job_uid: str
    signature: str = ""
    account: str = ""  # service account of its processes; empty: not known yet
    pod: Pod
    marked: bool = False  # marked by the control plane: its node is not ready
    bound: float | None = None  # on a node since, and no container was created yet
    gone_by: float | None = None  # when its grace period ends
    asked: ResourceLimits = ResourceLimits()
    demands: Demands | None = None  # on the labels and taints of nodes; kept while none will have it

    def claim(self) -> Claim:
        """Return its claim of origin."""
        return Claim(self.namespace, self.job_uid, self.pod.name, self.uid, self.pod.created, self.signature)

    def suspects_node(self, now: float) -> bool:
        """Return whether the node may be the reason that nothing happens: worth a look at it."""
        if self.marked:
            return True
        late = self.gone_by is not None and now >= self.gone_by + OVERDUE_SECONDS
        unstarted = self.bound is not None and now >= self.bound + UNSTARTED_SECONDS
        return bool(self.pod.node) and self.pod.alive and (late or unstarted)

    def suspects_node_at(self) -> float | None:
        """Return when the node becomes suspect, if nothing happens before."""
        times = [
            since + wait
            for since, wait in ((self.gone_by, OVERDUE_SECONDS), (self.bound, UNSTARTED_SECONDS))
            if since is not None and self.pod.node and self.pod.alive
        ]
        return min(times, default=None)


def read(pod: KubePod) -> PodRecord | None:
    """Return what is kept of a pod; None: no TrainingJob controls it, or a pod of that job is named otherwise.

    It may be forged: see `Provenance` for whether the operator created it.

    Index and incarnation come from the name: labels can be edited.
    """
    owner = pod.metadata.controller
    if owner is None or not owner.is_job() or not pod.metadata.uid:
        return None
    place = _incarnation_and_index(pod.metadata.name, owner.name)
    if place is None:
        return None
    container = next((each for each in pod.spec.containers if each.name == names.TRAINER), None)
    resources = container.resources if container is not None else None
    seen = _pod(pod, *place)
    return PodRecord(
        uid=pod.metadata.uid,
        version=version(pod.metadata.resource_version),
        whole=pod.kind != "PartialObjectMetadata",
        namespace=pod.metadata.namespace,
        job_name=owner.name,
        job_uid=owner.uid,
        signature=pod.metadata.provenance,
        account=pod.spec.service_account_name,
        pod=seen,
        marked=_marked(pod),
        bound=_bound(pod),
        gone_by=_time(pod.metadata.deletion_timestamp),
        demands=demands(pod.spec) if seen.reason in PLACEMENT else None,
        asked=(resources.requests if resources is not None else None) or ResourceLimits(),
    )


def _pod(pod: KubePod, incarnation: int, index: int) -> Pod:
    phase = _phase(pod)
    reason, message, started, finished, code = "", "", None, None, None
    lines: tuple[str, ...] = ()
    configuration = pod.metadata.annotations.configuration if pod.metadata.annotations is not None else ""
    if phase in {"Succeeded", "Failed"}:
        end = termination.how(pod)
        reason, message, code, lines = end.reason, end.message, end.exit_code, end.lines
        started, finished = _time(end.started), _time(end.finished)
    else:
        reason, message = termination.disruption(pod)
        if phase == "Pending" and not reason:
            reason, message = container_waiting.reason(pod)
        running = (each.state.running for each in pod.status.container_statuses or () if each.name == names.TRAINER)
        started = next((_time(state.started_at) for state in running if state is not None), None)
    image, begun = image_pull.pulling(pod) if phase == "Pending" else ("", None)
    return Pod(
        uid=pod.metadata.uid,
        name=pod.metadata.name,
        index=index,
        incarnation=incarnation,
        phase=phase,
        node=pod.spec.node_name,
        address=pod.status.pod_ip,
        created=_time(pod.metadata.creation_timestamp) or 0.0,
        placed=_placed(pod),
        started=started,
        finished=finished,
        deleting=pod.metadata.deletion_timestamp is not None,
        lingers=phase in {"Succeeded", "Failed"} and pod.status.phase == "Running",
        exit_code=code,
        reason=reason,
        message=message,
        lines=lines,
        configuration=configuration if len(configuration) <= MAX_DIGEST else "",
        images=_images(pod),
        pulling=image,
        pulling_since=begun,
        pulled=image_pull.slowest(pod),
        image_digest=_image_digest(pod),
    )


def _images(pod: KubePod) -> Images | None:
    trainer = next((each.image for each in pod.spec.containers if each.name == names.TRAINER), "")
    copied = (each.image for each in pod.spec.init_containers or () if each.name == names.AGENT)
    mounted = (each.image for each in pod.spec.volumes or () if each.name == names.AGENT_VOLUME)
    agent = next(copied, "") or next((image.reference for image in mounted if image is not None), "")
    return Images(trainer=trainer, agent=agent) if trainer else None


def _image_digest(pod: KubePod) -> str:
    """Return which image its node runs for the trainer, `repository@sha256:...`.

    Empty if it cannot be compared: an image that was loaded into a node has a digest of its archive.
    """
    statuses = pod.status.container_statuses or ()
    found = next((each.image_id for each in statuses if each.name == names.TRAINER), "")
    repository, at, _ = found.rpartition("@sha256:")
    return found if at and "/import-" not in repository and len(found) <= MAX_IMAGE else ""


def _phase(pod: KubePod) -> PodPhase:
    """Return the phase; a pod has ended when its trainer has, since injected containers may run forever."""
    phase = pod.status.phase
    trainer = next((each for each in pod.status.container_statuses or () if each.name == names.TRAINER), None)
    if phase == "Running" and trainer is not None:
        if trainer.state.terminated is not None:
            return "Failed" if trainer.state.terminated.exit_code else "Succeeded"
        if trainer.state.running is None:
            return "Pending"
    if phase in {"Pending", "Running", "Succeeded", "Failed"}:
        return phase  # type: ignore[return-value]  # narrowed by the line above
    return "Unknown"


def _marked(pod: KubePod) -> bool:
    """Return whether the node controller marked the pod as not ready, as it does if the node is not."""
    ready, containers = pod.status.condition("Ready"), pod.status.condition("ContainersReady")
    return (
        ready is not None
        and containers is not None
        and ready.status == "False"
        and containers.status == "True"
        and pod.status.phase == "Running"
    )


def _bound(pod: KubePod) -> float | None:
    if pod.status.phase != "Pending" or not pod.spec.node_name:
        return None
    begun = pod.status.condition("PodReadyToStartContainers")
    if begun is not None and begun.status == "True":
        return None
    return _placed(pod)


def _placed(pod: KubePod) -> float | None:
    scheduled = pod.status.condition("PodScheduled") if pod.spec.node_name else None
    return _time(scheduled.last_transition_time) if scheduled is not None else None


def _incarnation_and_index(name: str, job_name: str) -> tuple[int, int] | None:
    rest = name.removeprefix(f"{job_name}-")
    incarnation, _, index = rest.partition("-")
    if rest == name or not (incarnation.isdecimal() and index.isdecimal() and name.isascii()):
        return None
    return int(incarnation), int(index)


def _time(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return Time.parse(text)
    except ValueError:
        return None
