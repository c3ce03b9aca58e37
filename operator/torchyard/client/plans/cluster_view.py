"""What a plan needs to know of a cluster; a part that could not be read is empty, and has a sentence in `unread`."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from torchyard.api.resource import TrainingJob
from torchyard.client.plans.quota import Queue
from torchyard.kubernetes.kueue_objects import ClusterQueue
from torchyard.kubernetes.objects import KubePod, Node
from torchyard.reconcile.profile import NO_PROFILE, ProfileVerdict


class ClusterView(Struct, frozen=True, kw_only=True):
    """What could be read of a cluster with the rights of the user.

    Attributes:
        where: namespace and cluster, in words.
        nodes: of the cluster; None: not read.
        pods: of all namespaces; None: not read.
        own_pods: of the namespace, if those of all could not be read.
        jobs: of all namespaces, else of the own one.
        existing: the job of this name.
        profile: what the profile of the job means for it.
        queue: of the job.
        cluster_queue: behind the queue.
        quotas: ResourceQuotas of the namespace.
        claimed_gpus: GPUs in the claims of each pod; None: there are no claims, or templates do not tell.
        accepted: whether the API server accepts the object in a dry run; None: it was not asked.
        rejection: its words, if it does not.
        unread: a sentence for each part that could not be read.
    """

    where: str
    nodes: tuple[Node, ...] | None = None
    pods: tuple[KubePod, ...] | None = None
    own_pods: tuple[KubePod, ...] = ()
    jobs: tuple[TrainingJob, ...] = ()
    existing: TrainingJob | None = None
    profile: ProfileVerdict = NO_PROFILE
    queue: Queue | None = None
    cluster_queue: ClusterQueue | None = None
    quotas: tuple[Mapping[str, Any], ...] = ()
    claimed_gpus: int | None = None
    accepted: bool | None = None
    rejection: str = ""
    unread: tuple[str, ...] = ()
