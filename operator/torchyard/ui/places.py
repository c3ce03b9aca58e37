"""What the page calls a place: this machine, or a context of the kubeconfig; and the jobs of its namespaces."""

from torchyard.client.backend import Backend, Unreadable
from torchyard.client.errors import TorchYardError
from torchyard.client.location import HERE, Location, contexts, is_configured
from torchyard.client.summaries import Summary

MAX_PLACES = 50


def places_of(context: str | None, namespace: str | None) -> dict[str, Location]:
    """Return the locations that the page offers by name, those that it shows at first in front.

    Args:
        context: of the cluster that comes first; None: the current one.
        namespace: the only one of that cluster that is shown; None: all that the user may list.
    """
    places = {"here": HERE}
    if context is None and namespace is None and not is_configured():
        return places
    names = contexts()
    current = context or (names[0] if names else "cluster")
    places[current] = Location("cluster", context, namespace)
    others = [name for name in names if name not in places][: MAX_PLACES - len(places)]
    return places | {name: Location("cluster", name) for name in others}


def within(location: Location, text: str) -> tuple[Location, str]:
    """Return where a job is, and its name: the page calls it `NAME`, or `NAMESPACE/NAME` on a cluster."""
    namespace, slash, name = text.rpartition("/")
    return (location._replace(namespace=namespace), name) if slash and location.kind == "cluster" else (location, text)


async def listed(backend: Backend, location: Location) -> tuple[str, list[Summary | Unreadable]]:
    """Return the location in words, and its jobs: of all namespaces, or of one if the user may not list the others."""
    if location.kind == "cluster" and location.namespace is None:
        try:
            return f"all namespaces of {backend.cluster}", await backend.summaries(everywhere=True)
        except TorchYardError:
            if location.api is not None:  # a page in the cluster: no namespace is the user's own
                raise
            return backend.where, await backend.summaries()
    return backend.where, await backend.summaries()
