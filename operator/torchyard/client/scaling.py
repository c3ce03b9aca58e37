"""Whether the number of nodes of a job may change, before anything is asked to change it."""

from torchyard.api.resource import TrainingJob
from torchyard.api.values import plural
from torchyard.client.errors import TorchYardError


def require_scalable(job: TrainingJob, nodes: int, flags: str = "") -> None:
    """Check that a job may get this number of nodes now.

    Args:
        job: as it is.
        nodes: the new value of `spec.nodes`.
        flags: flags that proposed commands need for the location of the job.

    Raises:
        TorchYardError: it is over, not elastic, or the number is out of bounds.
    """
    name, spec = job.metadata.name, job.spec
    elastic = spec.elastic
    if job.status.state.terminal:
        raise TorchYardError(f"{name} has already {job.status.state.lower()}", "run it again with another spec.nodes")
    if nodes < 1:
        raise TorchYardError(f"nodes: {nodes} is too small", "use at least 1")
    if elastic is not None and not elastic.min_nodes <= nodes <= elastic.max_nodes:
        bounds = f"elastic.minNodes {elastic.min_nodes} and elastic.maxNodes {elastic.max_nodes}"
        fix = f"choose a number between them, or `torchyard suspend {name}{flags}` and change spec.elastic"
        raise TorchYardError(f"nodes: {nodes} is not between {bounds} of {name}", fix)
    if elastic is None and not spec.suspend and nodes != spec.nodes:
        fix = f"`torchyard suspend {name}{flags}` first, or add spec.elastic to the job while it is suspended"
        raise TorchYardError(f"{name} is not elastic: it trains with all of its {plural(spec.nodes, 'node')}", fix)
