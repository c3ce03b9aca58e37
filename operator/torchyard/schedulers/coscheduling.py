"""The coscheduling plugin of scheduler-plugins: `PodGroup` of `scheduling.x-k8s.io`.

The plugin has no queueing hints for nodes that come and pods that go. So pods that it has rejected stay pending,
although they fit, until Kubernetes tries all pods again after five minutes: tried on 0.34, after a node came, and after
two gangs that competed had rejected each other. A change of the group wakes it in 0.3 s. So a group that waits gets an
annotation whenever nodes change, and every WAKE_SECONDS, since the operator does not watch the pods of others.
"""

from typing import ClassVar

from msgspec.structs import replace

from torchyard.api.launch import fewest_nodes
from torchyard.api.resource import GROUP
from torchyard.schedulers.pod_groups import PodGroups, pod_group_rights, total_requests
from torchyard.schedulers.protocol import (
    Admission,
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
WAKE = f"{GROUP}/wake"  # annotation: digest of the nodes and of the time for which the group was last woken
WAKE_SECONDS = 30


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
        """Create the group, and wake it while a pod of it waits: when nodes have changed, and at intervals."""
        changes = super().ask(gang)
        there = gang.object
        if changes or there is None or not gang.unplaced or not is_asked(gang, self.group(gang)):
            return changes
        nodes = gang.request.sources.get(NODES.plural, ())
        wake = digest({"nodes": {node.name: node.document for node in nodes}, "interval": gang.now // WAKE_SECONDS})
        if there.at("metadata", "annotations", WAKE) == wake:
            return ()
        patch = {"metadata": {"annotations": {WAKE: wake}}}
        why = "the plugin does not notice by itself that there is room"
        return (PatchObject(kind=there.kind, name=there.name, uid=there.uid, patch=patch, why=why),)

    def admission(self, gang: Gang) -> Admission:
        """Return that pods may be created once the group is there, and when to wake a group that waits."""
        verdict = super().admission(gang)
        return replace(verdict, again=(gang.now // WAKE_SECONDS + 1) * WAKE_SECONDS) if gang.unplaced else verdict

    def words(self, group: GangObject) -> str:
        """Return the phase of the group."""
        phase = group.at("status", "phase")
        return f"coscheduling: pod group {group.name} is {phase or 'Pending'}"
