"""The coscheduling plugin of scheduler-plugins: `PodGroup` of `scheduling.x-k8s.io`.

The plugin does not look at a group again when a node comes (its queueing hints lack the event): tried on 0.34, pods
that fit stayed pending for more than four minutes. A change of the group wakes it in 0.3 s. So a group that waits gets
an annotation with a digest of the nodes whenever these change.
"""

from typing import ClassVar

from torchyard.api.launch import fewest_nodes
from torchyard.api.resource import GROUP
from torchyard.schedulers.pod_groups import PodGroups, pod_group_rights, total_requests
from torchyard.schedulers.protocol import (
    Change,
    Gang,
    GangObject,
    Kind,
    Manifest,
    PatchObject,
    PodChanges,
    Right,
    Source,
    digest,
    is_asked,
)

KIND = Kind("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")
POD_GROUP = "scheduling.x-k8s.io/pod-group"
NODES = Kind("", "v1", "Node", "nodes", namespaced=False)
SEEN_NODES = f"{GROUP}/nodes"  # annotation: digest of the nodes that the group was last woken for


class Coscheduling(PodGroups, frozen=True):
    """A pod names its group in a label. `scheduler_name`: of the scheduler that has the plugin."""

    scheduler_name: str = "scheduler-plugins-scheduler"
    name: ClassVar[str] = "coscheduling"
    kinds: ClassVar[tuple[Kind, ...]] = (KIND,)
    # What decides whether a pod fits; a node that is not ready has a taint. Heartbeats are not among them.
    sources: ClassVar[tuple[Source, ...]] = (
        Source(NODES, ("metadata.name", "spec.unschedulable", "spec.taints", "status.allocatable")),
    )
    rights: ClassVar[tuple[Right, ...]] = (
        *pod_group_rights(KIND, "patch"),
        Right("", "nodes", ("watch",), everywhere=True),
    )

    def group(self, gang: Gang) -> Manifest:
        """Return a group of all pods."""
        return {"minMember": fewest_nodes(gang.job.spec), "minResources": total_requests(gang)}

    def pods(self, gang: Gang) -> PodChanges:
        """Return the group in a label, and the scheduler that has the plugin."""
        return PodChanges(labels={POD_GROUP: gang.name}, spec={"schedulerName": self.scheduler_name})

    def ask(self, gang: Gang) -> tuple[Change, ...]:
        """Create the group, and wake it when nodes have changed while a pod of it waits."""
        changes = super().ask(gang)
        there = gang.object
        if changes or there is None or not gang.unplaced or not is_asked(gang, self.group(gang)):
            return changes
        nodes = gang.request.sources.get(NODES.plural, ())
        now = digest({node.name: node.document for node in nodes})
        if there.at("metadata", "annotations", SEEN_NODES) == now:
            return ()
        patch = {"metadata": {"annotations": {SEEN_NODES: now}}}
        return (PatchObject(kind=there.kind, name=there.name, uid=there.uid, patch=patch, why="nodes have changed"),)

    def words(self, group: GangObject) -> str:
        """Return the phase of the group."""
        phase = group.at("status", "phase")
        return f"coscheduling: pod group {group.name} is {phase or 'Pending'}"
