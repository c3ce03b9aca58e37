"""The number of GPUs in the claims of a job, read from their templates where the installation allows it."""

import logging
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from torchyard.api.resource import TrainingJob
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.kubernetes.diagnostics import claim_templates
from torchyard.reconcile.ports import Unavailable
from torchyard.schedulers.protocol import Right

RIGHTS = (Right("resource.k8s.io", "resourceclaimtemplates", ("get",)),)
FRESH_SECONDS = 60.0
MAX_TEMPLATES = 4096
_log = logging.getLogger(__name__)


class ClaimGpus:
    """Counts GPUs by templates; each template is read at most once a minute.

    Args:
        api: may get ResourceClaimTemplates; None: nothing is read, and no number is known.
        clock: unix seconds.
    """

    def __init__(self, api: Api | None, clock: Callable[[], float]) -> None:
        self._api, self._clock = api, clock
        self._counts: OrderedDict[tuple[str, str], tuple[float, int | None]] = OrderedDict()

    async def of(self, job: TrainingJob) -> int:
        """Return the GPUs in the claims of each pod; 0: none, or a template does not tell."""
        counts = [await self._count(job.metadata.namespace, each.template) for each in job.spec.resources.claims]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else 0

    async def _count(self, namespace: str, name: str) -> int | None:
        if self._api is None:
            return None
        key = (namespace, name)
        time, count = self._counts.get(key, (float("-inf"), None))
        if abs(self._clock() - time) < FRESH_SECONDS:
            return count
        try:
            answer = await self._api.request("GET", claim_templates.path(namespace, name))
            count = claim_templates.gpus_of(msgspec.json.decode(answer))
        except (NotFound, Gone, Rejected, Unavailable, msgspec.MsgspecError) as error:
            _log.warning("ResourceClaimTemplate %s/%s cannot be read, its GPUs are not counted: %s", *key, error)
            count = None
        self._counts[key] = (self._clock(), count)
        while len(self._counts) > MAX_TEMPLATES:
            self._counts.popitem(last=False)
        return count
