"""How long the node of a pod pulled its images: from the statuses of its containers, which start one after the other.

The time between the end of one container's start and the start of the next is the pull of the latter's image and the
creation of its container, which usually takes less than a second. The API gives whole seconds, so that a difference of
one may be a moment before and after a full second: only two prove that more than a second passed.
"""

from collections.abc import Iterator

from torchyard.api.status import ImagePull
from torchyard.api.values import Time
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.objects import ContainerStatus, KubePod

PROVEN_SECONDS = 2
QUIET = frozenset({"", "ContainerCreating", "PodInitializing"})


def pulling(pod: KubePod) -> tuple[str, float | None]:
    """Return the image that the node pulls now, and since when; an empty image: it pulls none."""
    for image, begun, ended, waits in _starts(pod):
        if ended is None:
            return (image, begun) if waits in QUIET else ("", None)
    return "", None


def slowest(pod: KubePod) -> ImagePull | None:
    """Return the image of the pod that took longest; None: all were on the node, or none has been pulled yet."""
    pulls = [(ended - begun, image) for image, begun, ended, _ in _starts(pod) if ended is not None]
    seconds, image = max(pulls, default=(0.0, ""))
    return ImagePull(image=image, seconds=round(seconds)) if seconds >= PROVEN_SECONDS else None


def _starts(pod: KubePod) -> Iterator[tuple[str, float, float | None, str]]:
    """Yield image, begin, end and reason to wait of each container up to the first one that has not started."""
    begun = _sandbox(pod)
    if begun is None:
        return
    known = {each.name: each for each in (*(pod.status.init_container_statuses or ()), *_main(pod))}
    for container in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ())):
        status = known.get(container.name)
        if status is None:
            return
        state = status.state
        last = state.running or state.terminated
        started = _time(last.started_at) if last is not None else None
        yield container.image, begun, started, state.waiting.reason if state.waiting is not None else ""
        if started is None:
            return
        ended = _time(state.terminated.finished_at) if state.terminated is not None else None
        begun = ended if ended is not None and container.name != names.TRAINER else started


def _main(pod: KubePod) -> tuple[ContainerStatus, ...]:
    return pod.status.container_statuses or ()


def _sandbox(pod: KubePod) -> float | None:
    """Return when the node could begin to pull; None: it cannot yet. Older nodes do not report it."""
    ready = pod.status.condition("PodReadyToStartContainers")
    if ready is not None:
        return _time(ready.last_transition_time) if ready.status == "True" else None
    scheduled = pod.status.condition("PodScheduled") if pod.spec.node_name else None
    return _time(scheduled.last_transition_time) if scheduled is not None else None


def _time(text: str | None) -> float | None:
    try:
        return float(Time.parse(text)) if text else None
    except ValueError:
        return None
