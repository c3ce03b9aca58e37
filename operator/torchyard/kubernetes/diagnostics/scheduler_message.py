"""The meaning of the scheduler's message.

`0/3 nodes are available: 1 node(s) had untolerated taint {k: v}, 2 Insufficient nvidia.com/gpu. preemption: ...`: each
node is counted once, under the first test that it failed. A node that failed a late test passed the earlier ones, so
the latest test that failed anywhere is the closest the pod came to a node: that is the cause a user can act on.
"""

import re
from collections.abc import Iterable

from msgspec import Struct

from torchyard.api.reasons import Reason

# What follows the first full stop is about preemption and devices; names in faults have dots, but no space after them.
_SENTENCE = re.compile(r"^\d+/(?P<nodes>\d+) nodes are available: (?P<faults>.*?)(?:\. .*|\.)?$", re.DOTALL)
_FAULT = re.compile(r"(?P<count>\d+) (?P<what>(?:[^,{}]|\{[^{}]*\})+?)(?=, \d+ |$)")
_TAINT = re.compile(r"\{(?P<taint>[^{}]*)\}")
_CLAIM = re.compile(r'persistentvolumeclaim "(?P<name>[^"]+)"')
_DEVICE_CLASS = re.compile(r"device class (?P<name>\S+) does not exist")
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
MAX_MESSAGE = 300


class Fault(Struct, frozen=True):
    """One test that `count` nodes failed."""

    count: int
    what: str


def reason(message: str, claims: Iterable[str] = ()) -> tuple[str, str]:
    """Return the reason code and evidence.

    Args:
        message: of the condition `PodScheduled`.
        claims: names of the claims that the pod mounts.
    """
    named = _CLAIM.search(message)
    if named is not None and "not found" in message:
        return Reason.MISSING_CLAIM, named["name"]
    if named is not None and "being deleted" in message:
        return Reason.MISSING_CLAIM, f"{named['name']} is being deleted"
    if (device_class := _DEVICE_CLASS.search(message)) is not None:
        return Reason.MISSING_DEVICE_CLASS, device_class["name"]
    faults = read(message)
    if not faults and "unbound immediate PersistentVolumeClaims" in message:
        return Reason.VOLUME_NOT_BOUND, ", ".join(claims) or _short(message)
    known = [(rank, code, fault) for fault in faults if (found := _priority_and_code(fault)) for rank, code in [found]]
    if not known:
        return Reason.UNSCHEDULABLE, _short(message)
    rank, code, _ = max(known, key=lambda each: each[0])
    chosen = [fault for each, _, fault in known if each == rank]
    if code in {Reason.VOLUME_NOT_BOUND, Reason.VOLUME_ELSEWHERE, Reason.VOLUME_IN_USE}:
        return code, ", ".join(claims) or chosen[0].what
    return code, _evidence(code, chosen, message)


def read(message: str) -> list[Fault]:
    """Return the faults of a scheduler's sentence, in its order."""
    sentence = _SENTENCE.match(message.strip())
    if sentence is None:
        return []
    return [Fault(int(each["count"]), each["what"].strip().rstrip(".")) for each in _FAULT.finditer(sentence["faults"])]


def _priority_and_code(fault: Fault) -> tuple[int, str] | None:
    """Return the position of this test in the scheduler's order, and its reason code."""
    what = fault.what
    if "volume" in what.lower():
        return 6, _volume(what)
    if (short := _shortage(what)) is not None:
        return short
    if "pod affinity" in what or "topology spread" in what:
        return 7, Reason.TOPOLOGY_NOT_MET
    if "affinity" in what or "selector" in what:
        return 3, Reason.NO_MATCHING_NODE
    if "taint" in what:
        # Newer schedulers only count taints, and where other nodes failed another test it is the control plane's.
        taint = _TAINT.search(what)
        return (0 if taint is None or taint["taint"].startswith(_CONTROL_PLANE) else 2), Reason.UNTOLERATED
    if "unschedulable" in what:
        return 1, Reason.NODES_CORDONED
    return None


def _shortage(what: str) -> tuple[int, str] | None:
    """Return what a node has too little of: GPUs are scarce, and a node that lacks others as well lacks them first."""
    if "cannot allocate all claims" in what or "resourceclaim" in what:
        return 5, Reason.INSUFFICIENT_DEVICES
    if not what.startswith(("Insufficient ", "Too many pods")):
        return None
    resource = what.removeprefix("Insufficient ")
    if resource == "nvidia.com/gpu":
        return 5, Reason.INSUFFICIENT_GPU
    known = {"cpu": Reason.INSUFFICIENT_CPU, "memory": Reason.INSUFFICIENT_MEMORY}
    return 4, known.get(resource, Reason.INSUFFICIENT_RESOURCE)


def _volume(what: str) -> str:
    if "ReadWriteOncePod" in what:
        return Reason.VOLUME_IN_USE
    if "node affinity" in what:
        return Reason.VOLUME_ELSEWHERE
    return Reason.INSUFFICIENT_RESOURCE if "max volume count" in what else Reason.VOLUME_NOT_BOUND


def _evidence(code: str, chosen: list[Fault], message: str) -> str:
    """Older schedulers name the taint, newer ones only count."""
    taints = [taint["taint"].removesuffix(": ").strip() for each in chosen if (taint := _TAINT.search(each.what))]
    if code == Reason.UNTOLERATED and taints:
        return ", ".join(dict.fromkeys(taints))
    sentence = _SENTENCE.match(message.strip())
    total = f" of {sentence['nodes']}" if sentence is not None else ""
    return ", ".join(f"{each.count}{total} nodes: {each.what}" for each in chosen)[:MAX_MESSAGE]


def _short(message: str) -> str:
    sentence = _SENTENCE.match(message.strip())
    return (sentence["faults"] if sentence is not None else message).strip()[:MAX_MESSAGE]
