"""KAI (Run:ai's scheduler): `PodGroup` of `scheduling.run.ai`. Written from its API, not tried on its binaries."""

from typing import ClassVar, Literal

from torchyard.api.launch import fewest_nodes
from torchyard.schedulers.pod_groups import PodGroups, pod_group_rights, queue_and_priority
from torchyard.schedulers.protocol import Gang, GangObject, Kind, Manifest, PodChanges, Right

KIND = Kind("scheduling.run.ai", "v2alpha2", "PodGroup", "podgroups")
GROUP_NAME = "pod-group-name"
OWN_GROUP = "kai.scheduler/skip-podgrouper"
QUEUE = "kai.scheduler/queue"
FOREVER = "-1s"  # KAI would evict a gang that lost a pod, which the operator replaces in place


class Kai(PodGroups, frozen=True):
    """A pod names its group in an annotation; KAI's own grouping, which knows no TrainingJob, is switched off."""

    scheduler_name: str = "kai-scheduler"
    name: ClassVar[str] = "kai"
    kinds: ClassVar[tuple[Kind, ...]] = (KIND,)
    rights: ClassVar[tuple[Right, ...]] = pod_group_rights(KIND)
    queues: ClassVar[Literal["required", "optional", "none"]] = "optional"

    def group(self, gang: Gang) -> Manifest:
        """Return a group of all pods that is never stale."""
        return {"minMember": fewest_nodes(gang.job.spec), "stalenessGracePeriod": FOREVER, **queue_and_priority(gang)}

    def pods(self, gang: Gang) -> PodChanges:
        """Return the group in an annotation, the queue in a label, and KAI's scheduler."""
        queue = gang.job.spec.scheduling.queue
        return PodChanges(
            labels={QUEUE: queue} if queue is not None else {},
            annotations={GROUP_NAME: gang.name, OWN_GROUP: "true"},
            spec={"schedulerName": self.scheduler_name},
        )

    def words(self, group: GangObject) -> str:
        """Return why the group is not placed."""
        listed = group.at("status", "schedulingConditions")
        newest = listed[-1] if isinstance(listed, list) and listed and isinstance(listed[-1], dict) else {}
        return f"kai: {newest['message']}" if newest.get("message") else ""
