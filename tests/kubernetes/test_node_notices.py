"""What nodes announce: which taints and conditions count and for which pods; lists of names are checked."""

import json

import pytest

from torchyard.kubernetes.cache.node_notices import KNOWN, NodeNotices, notice_names

SPOT = "aws-node-termination-handler/spot-itn"


class Seen:
    """Notices of nodes at a set time."""

    def __init__(self) -> None:
        self.now, self.version, self.news = 100.0, 1, []
        self.notices = NodeNotices(None, KNOWN, changed=self.news.append, clock=lambda: self.now)

    def put(self, *taints, conditions=()):
        self.version += 1
        document = {
            "metadata": {"name": "w1", "uid": "node-1", "resourceVersion": str(self.version)},
            "spec": {"taints": list(taints)},
            "status": {"conditions": list(conditions)},
        }
        self.notices.informer.put(json.dumps(document).encode())


def test_a_new_taint_counts_for_pods_that_were_there_before_it():
    seen = Seen()
    seen.put()
    seen.now = 200.0
    seen.put({"key": "other", "effect": "NoSchedule"}, {"key": SPOT, "value": "i-1", "effect": "NoSchedule"})
    seen.put({"key": SPOT, "value": "i-1", "effect": "NoSchedule"})
    assert seen.news == ["w1"]
    assert seen.notices.leaves("w1", placed=150.0) == f"taint {SPOT}=i-1"
    assert not seen.notices.leaves("w1", placed=250.0)
    assert seen.notices.nodes() == ["w1"]
    seen.put()
    assert (seen.notices.leaves("w1", placed=150.0), seen.notices.nodes()) == ("", [])


def test_a_notice_that_is_older_than_the_operator_counts_by_its_own_time():
    seen = Seen()
    seen.put({"key": SPOT, "effect": "NoSchedule"})
    assert not seen.notices.leaves("w1", placed=50.0), "it may be older than the pod"
    begun = "2026-11-29T10:00:00Z"
    dated = {"type": "KernelDeadlock", "status": "True", "message": "hung", "lastTransitionTime": begun}
    seen.put(conditions=[dated])
    assert seen.notices.leaves("w1", placed=50.0) == "condition KernelDeadlock: hung"
    seen.put(conditions=[{**dated, "status": "False"}])
    assert seen.notices.nodes() == []


def test_names_are_checked():
    assert notice_names("") == ()
    assert notice_names("known, my.io/gone,my.io/gone") == (*KNOWN, "my.io/gone")
    with pytest.raises(ValueError, match="'a b' is neither the key of a taint nor the type of a condition"):
        notice_names("a b")
