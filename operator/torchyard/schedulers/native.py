"""The gang scheduling of Kubernetes itself: `PodGroup` of `scheduling.k8s.io`, behind the feature gate GenericWorkload.

The version is what the API server serves: v1beta1 (1.37 and later) or v1alpha2 (1.36). v1alpha1 of 1.35 has another
shape and is not used.
"""

from typing import ClassVar

from torchyard.api.launch import fewest_nodes
from torchyard.schedulers.pod_groups import PodGroups, pod_group_rights
from torchyard.schedulers.protocol import Gang, GangObject, Kind, Manifest, PodChanges, Right

KINDS = tuple(Kind("scheduling.k8s.io", version, "PodGroup", "podgroups") for version in ("v1beta1", "v1alpha2"))
# 1.37 renamed the condition; there it is final once it is true.
CONDITIONS = ("PodGroupInitiallyScheduled", "PodGroupScheduled")


class Native(PodGroups, frozen=True):
    """A pod names its group; the default scheduler binds pods once `minCount` of them can be placed."""

    name: ClassVar[str] = "native"
    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    rights: ClassVar[tuple[Right, ...]] = pod_group_rights(KINDS[0])

    def group(self, gang: Gang) -> Manifest:
        """Return a policy that needs all pods of the gang."""
        return {"schedulingPolicy": {"gang": {"minCount": fewest_nodes(gang.job.spec)}}}

    def pods(self, gang: Gang) -> PodChanges:
        """Return the name of the group, in the pod's spec."""
        return PodChanges(spec={"schedulingGroup": {"podGroupName": gang.name}})

    def words(self, group: GangObject) -> str:
        """Return why the group is not placed."""
        for kind in CONDITIONS:
            condition = group.condition(kind)
            if condition.status == "False":
                return f"kube-scheduler: {condition.reason}: {condition.message}"
        return ""
