"""Volcano: `PodGroup` of `scheduling.volcano.sh`, with a queue."""

from typing import ClassVar, Literal

from torchyard.api.launch import fewest_nodes
from torchyard.schedulers.pod_groups import PodGroups, pod_group_rights, queue_and_priority
from torchyard.schedulers.protocol import Gang, GangObject, Kind, Manifest, PodChanges, Right

KIND = Kind("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups")
GROUP_NAME = "scheduling.k8s.io/group-name"


class Volcano(PodGroups, frozen=True):
    """A pod names its group in an annotation. `scheduler_name`: of Volcano's scheduler."""

    scheduler_name: str = "volcano"
    name: ClassVar[str] = "volcano"
    kinds: ClassVar[tuple[Kind, ...]] = (KIND,)
    rights: ClassVar[tuple[Right, ...]] = pod_group_rights(KIND)
    queues: ClassVar[Literal["required", "optional", "none"]] = "optional"

    def group(self, gang: Gang) -> Manifest:
        """Return a group of the pods that a round needs.

        It has no `minResources`: Volcano does not consider such a group before the cluster has them to spare, and so
        none of a higher priority would preempt others where everything is in use.
        """
        return {"minMember": fewest_nodes(gang.job.spec), **queue_and_priority(gang)}

    def pods(self, gang: Gang) -> PodChanges:
        """Return the group in an annotation, and Volcano's scheduler."""
        return PodChanges(annotations={GROUP_NAME: gang.name}, spec={"schedulerName": self.scheduler_name})

    def words(self, group: GangObject) -> str:
        """Return why the group is not placed: its queue has not admitted it, or there is no capacity."""
        condition = group.condition("Unschedulable")
        if condition.holds:
            return f"volcano: {condition.reason}: {condition.message}"
        queue, phase = group.at("spec", "queue") or "default", group.at("status", "phase")
        return f"volcano: queue {queue} has not admitted the pod group" if phase in {None, "", "Pending"} else ""
