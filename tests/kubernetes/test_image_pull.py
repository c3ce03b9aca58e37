"""How long a node pulled the images of a pod, as the statuses of its containers show it."""

import pytest
from tests.support.kubernetes.pod_json import AGENT, ON_NODE, TRAINER, pod, seen

from torchyard.api.status import ImagePull
from torchyard.api.values import Time

T0 = Time.parse("2026-11-21T10:00:00Z")
WAITS = {"waiting": {"reason": "PodInitializing"}}


def at(seconds):
    return str(Time(T0 + seconds))


def running(begun):
    return {"running": {"startedAt": at(begun)}}


def ended(begun, end):
    return {"terminated": {"exitCode": 0, "startedAt": at(begun), "finishedAt": at(end)}}


def of(agent, trainer, *, sandbox="True", phase="Pending"):
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at(0)}]
    if sandbox:
        conditions.append({"type": "PodReadyToStartContainers", "status": sandbox, "lastTransitionTime": at(5)})
    status = {
        "phase": phase,
        "conditions": conditions,
        "initContainerStatuses": [{"name": "agent", "state": agent}],
        "containerStatuses": [{"name": "trainer", "state": trainer}],
    }
    found = seen(pod(spec=ON_NODE, status=status)).pod
    return found.pulling, found.pulling_since, found.pulled


@pytest.mark.parametrize(
    ("pulls", "expected"),
    [
        (of(WAITS, WAITS, sandbox="False"), ("", None, None)),
        (of(WAITS, WAITS), (AGENT["image"], T0 + 5, None)),
        (of(WAITS, WAITS, sandbox=""), (AGENT["image"], T0, None)),
        (of(ended(7, 8), WAITS), (TRAINER["image"], T0 + 8, ImagePull(image=AGENT["image"], seconds=2))),
        (of(ended(5, 6), WAITS), (TRAINER["image"], T0 + 6, None)),
        (
            of(ended(7, 8), running(98), phase="Running"),
            ("", None, ImagePull(image=TRAINER["image"], seconds=90)),
        ),
        (of(ended(5, 6), running(6), phase="Running"), ("", None, None)),
        (of(ended(6, 7), running(8), phase="Running"), ("", None, None)),
        (of(ended(7, 8), {"waiting": {"reason": "ErrImagePull"}})[:2], ("", None)),
    ],
    ids=[
        "no sandbox",
        "first image",
        "old node",
        "second image",
        "cached",
        "all",
        "all cached",
        "a second began",
        "fails",
    ],
)
def test_the_image_that_is_pulled_and_the_slowest_pull_are_known(pulls, expected):
    assert pulls == expected
