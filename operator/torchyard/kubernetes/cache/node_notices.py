"""Nodes that announce that they leave or are broken: by a taint or a condition, before their pods are gone.

Off by default (`nodeNotices` of the chart): it watches all nodes, each of which writes its status every few minutes. Of
a node, only its notice is kept. A notice counts for the pods that were on the node when it came, since a pod that is
placed there later tolerates it.
"""

import logging
import re
from collections.abc import Callable, Collection
from typing import Any

import msgspec
from msgspec import Struct

from torchyard.api.values import Time
from torchyard.kubernetes.cache.informer import Informer
from torchyard.kubernetes.client.api import Api, version
from torchyard.kubernetes.objects import Node

KNOWN = (
    # Taints of node termination handlers, autoscalers and cloud providers.
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "aws-node-termination-handler/rebalance-recommendation",
    "cloud.google.com/impending-node-termination",
    "karpenter.sh/disrupted",
    "ToBeDeletedByClusterAutoscaler",
    "node.kubernetes.io/out-of-service",
    # Conditions of Azure's scheduled events, node-problem-detector and NVSentinel.
    "VMEventScheduled",
    "KernelDeadlock",
    "ReadonlyFilesystem",
    "GpuMemWatch",
    "GpuNvlinkWatch",
    "GpuPcieWatch",
    "GpuThermalWatch",
    "SysLogsXIDError",
    "SysLogsGPUFallenOff",
)

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,300}[A-Za-z0-9])?")
_log = logging.getLogger(__name__)


class NodeNotice(Struct, frozen=True, kw_only=True, gc=False):
    """The notice of a node, empty if it has none, and when it came, in unix seconds; 0: before it was first seen."""

    uid: str
    version: int
    whole: bool = True
    node: str
    message: str = ""
    since: float = 0.0


class NodeNotices:
    """The notices of all nodes.

    Args:
        api: the server.
        names: keys of taints that announce that a node leaves, and types of conditions that do while they are true.
        changed: called with the name of a node that has a new notice.
        clock: unix seconds.
    """

    def __init__(
        self,
        api: Api,
        names: Collection[str],
        *,
        changed: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._names = frozenset(names)
        self._changed, self._clock = changed, clock
        self._by_node: dict[str, NodeNotice] = {}
        self.informer: Informer[Any, NodeNotice] = Informer(
            api, "/api/v1/nodes", of=Node, read=self._read, changed=self._take
        )

    async def run(self) -> None:
        """Follow the nodes until cancelled."""
        await self.informer.run()

    def leaves(self, node: str, placed: float) -> str:
        """Return the notice of a node that came after a pod was placed on it; empty: there is none."""
        notice = self._by_node.get(node)
        return notice.message if notice is not None and notice.since > placed else ""

    def nodes(self) -> list[str]:
        """Return the nodes that have a notice, the newest first."""
        return [each.node for each in sorted(self._by_node.values(), key=lambda each: -each.since)]

    def _read(self, node: Node) -> NodeNotice:
        message, since = notice_of(node, self._names)
        meta = node.metadata
        return NodeNotice(
            uid=meta.uid, version=version(meta.resource_version), node=meta.name, message=message, since=since or 0.0
        )

    def _take(self, before: NodeNotice | None, after: NodeNotice | None) -> None:
        if after is None:
            if before is not None:
                self._by_node.pop(before.node, None)
            return
        former = self._by_node.get(after.node)
        if not after.message:
            self._by_node.pop(after.node, None)
            return
        if former is not None and former.message == after.message:
            return
        # A taint has no time. One that is there when the node is first seen may be older than any pod.
        since = after.since or (self._clock() if before is not None else 0.0)
        self._by_node[after.node] = msgspec.structs.replace(after, since=since)
        _log.warning("node %s: %s", after.node, after.message)
        self._changed(after.node)


def notice_names(text: str) -> tuple[str, ...]:
    """Return the names in a setting: `known` for those of the table, and further ones, separated by commas.

    Raises:
        ValueError: a name cannot be that of a taint or a condition.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if odd := next((name for name in names if not _NAME.fullmatch(name)), None):
        raise ValueError(f"{odd!r} is neither the key of a taint nor the type of a condition; or write known")
    return tuple(dict.fromkeys(each for name in names for each in (KNOWN if name == "known" else (name,))))


def notice_of(node: Node, names: Collection[str]) -> tuple[str, float | None]:
    """Return the notice of a node and, where the object says it, since when; empty: it has none."""
    for taint in node.spec.taints or ():
        if taint.key in names:
            return f"taint {taint.key}" + (f"={taint.value}" if taint.value else ""), _seconds(taint.time_added)
    for each in node.status.conditions or ():
        if each.type in names and each.status == "True":
            said = f": {each.message}" if each.message else ""
            return f"condition {each.type}{said}", _seconds(each.last_transition_time)
    return "", None


def _seconds(text: str | None) -> float | None:
    try:
        return float(Time.parse(text)) if text else None
    except ValueError:
        return None
