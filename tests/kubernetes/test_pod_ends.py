"""How a pod ended: the words of kubelets, evictions and workers, and the reason and evidence a user reads."""

import json

import pytest
from tests.support.kubernetes.pod_json import ON_NODE, container, ended, placed, pod, seen

from torchyard.api.reasons import Reason


def told(code, **failure):
    return json.dumps({"code": code, "round": 3, "failure": failure or None})


DISRUPTED = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2026-11-21T10:04:00Z"}


def taken(reason, message, **status):
    return ended(143, conditions=[{**DISRUPTED, "reason": reason, "message": message}], **status)


ENDED = {
    "done": (ended(0, "Completed", told(0)), "", "", 0),
    "a worker's exception, from the agent's last words": (
        ended(1, "Error", told(1, exception="ValueError", message="x is not y", rank=3)),
        "",
        "ValueError: x is not y",
        1,
    ),
    "out of memory": (ended(137, "OOMKilled"), "OOMKilled", "limit 2Gi", 137),
    "killed": (ended(137), "", "its container was ended by signal 9", 137),
    "killed, after other words": (
        ended(137, "Error", "10:04:01 round 3 opened\n"),
        "",
        "its container was ended by signal 9; the last line of its log: 10:04:01 round 3 opened",
        137,
    ),
    "no python3 in the image": (
        ended(
            128, "StartError", 'failed to create containerd task: exec: "python3": executable file not found in $PATH'
        ),
        "PythonNotFound",
        'failed to create containerd task: exec: "python3": executable file not found in $PATH',
        128,
    ),
    "the runtime of a busy node": (
        ended(128, "StartError", "failed to start containerd task: context deadline exceeded: unknown"),
        "ContainerCannotStart",
        "failed to start containerd task: context deadline exceeded: unknown",
        128,
    ),
    "a file of the node that is not there": (
        ended(128, "StartError", "runc create failed: open /sys/fs/cgroup/kubepods/pod1: no such file or directory"),
        "ContainerCannotStart",
        "runc create failed: open /sys/fs/cgroup/kubepods/pod1: no such file or directory",
        128,
    ),
    "the installer's container was not started": (
        placed(
            container("waiting", reason="PodInitializing"),
            init=container("terminated", "agent", exitCode=128, reason="StartError", message="shim: resource busy"),
            phase="Failed",
        ),
        "ContainerCannotStart",
        "agent: shim: resource busy",
        None,
    ),
    "the agent crashed": (
        ended(1, "Error", "Traceback (most recent call last):\n  File ...\nMemoryError\n"),
        "AgentCrashed",
        "MemoryError",
        1,
    ),
    "evicted by the kubelet": (
        {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "The node was low on resource: memory. Threshold quantity: 100Mi, available: 20Mi.",
        },
        "Evicted",
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 20Mi.",
        None,
    ),
    "drained": (
        taken("EvictionByEvictionAPI", "Eviction API: evicting"),
        "Evicted",
        "Eviction API: evicting",
        143,
    ),
    "preempted": (
        taken("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"),
        "PreemptedByPriority",
        "default-scheduler: preempting to accommodate a higher priority pod",
        143,
    ),
    "its node is gone": (
        {
            "phase": "Failed",
            "conditions": [{**DISRUPTED, "reason": "DeletionByPodGC", "message": "PodGC: node not found"}],
        },
        "NodeLost",
        "PodGC: node not found",
        None,
    ),
    "the node shuts down": (
        {
            "phase": "Failed",
            "reason": "Terminated",
            "message": "Pod was terminated in response to imminent node shutdown.",
        },
        "Evicted",
        "Pod was terminated in response to imminent node shutdown.",
        None,
    ),
    "the node would not have it": (
        {"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "Node didn't have enough resource"},
        "NodeRefused",
        "OutOfnvidia.com/gpu: Node didn't have enough resource",
        None,
    ),
    "the node would not have it, in words of its own": (
        {
            "phase": "Failed",
            "reason": "TopologyAffinityError",
            "message": "Resources cannot be allocated with Topology locality",
        },
        "NodeRefused",
        "TopologyAffinityError: Resources cannot be allocated with Topology locality",
        None,
    ),
    "it filled its own volume": (
        {
            "phase": "Failed",
            "reason": "Evicted",
            "message": 'Usage of EmptyDir volume "torchyard-checkpoints" exceeds the limit "10Mi". ',
        },
        "DiskLimitExceeded",
        'Usage of EmptyDir volume "torchyard-checkpoints" exceeds the limit "10Mi".',
        None,
    ),
    "an injected init container failed": (
        placed(
            container("waiting", reason="PodInitializing"),
            init=container("terminated", "mesh-init", exitCode=3, reason="Error", message="no iptables\n"),
            phase="Failed",
        ),
        "InitContainerFailed",
        "mesh-init: no iptables",
        None,
    ),
    "the agent could not be installed": (
        placed(
            container("waiting", reason="PodInitializing"),
            init=container("terminated", "agent", exitCode=1, reason="Error", message="no space left on device\n"),
            phase="Failed",
        ),
        "AgentNotInstalled",
        "no space left on device",
        None,
    ),
    "an unknown end": (
        ended(137, "ContainerStatusUnknown", "The container could not be located when the pod was terminated"),
        "PodLost",
        "",
        None,
    ),
}


@pytest.mark.parametrize("name", ENDED)
def test_the_end_of_a_pod_is_explained(name):
    status, reason, evidence, code = ENDED[name]
    found = seen(pod(spec=ON_NODE, status=status)).pod
    assert not found.alive
    assert (found.reason, found.message, found.exit_code) == (reason, evidence, code)
    assert not reason or reason in set(Reason)


def test_the_reason_of_a_displaced_pod_is_known_before_it_is_gone():
    condition = {**DISRUPTED, "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    going = pod(
        metadata={"deletionTimestamp": "2026-11-21T10:05:00Z"},
        spec=ON_NODE,
        status=placed(container("running", startedAt="2026-11-21T10:00:05Z"), phase="Running", conditions=[condition]),
    )
    found = seen(going).pod
    assert (found.phase, found.deleting, found.reason) == ("Running", True, "Evicted")


def test_an_injected_container_does_not_keep_a_finished_pod_alive():
    status = placed(
        container("terminated", exitCode=0, reason="Completed", finishedAt="2026-11-21T10:05:00Z"),
        container("running", "istio-proxy", startedAt="2026-11-21T10:00:05Z"),
        phase="Running",
    )
    found = seen(pod(spec=ON_NODE, status=status)).pod
    assert (found.phase, found.exit_code, found.lingers) == ("Succeeded", 0, True)


# torchrun of PyTorch 2.15; a kubelet keeps the last 2 KiB of it.
TORCHRUN = """ValueError: no luck
E1121 12:00:00.6 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 8)
Traceback (most recent call last):
  File "/opt/bin/torchrun", line 10, in <module>
    sys.exit(main())
             ^^^^^^
  File "/opt/torch/distributed/launcher/api.py", line 386, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 0)
  exitcode  : 1 (pid: 13)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
CUT_OFF = TORCHRUN.partition("main())\n")[2]


@pytest.mark.parametrize(
    ("code", "log", "reason", "message"),
    [
        (1, TORCHRUN, "WorkerFailed", "ValueError: no luck"),
        (1, CUT_OFF, "WorkerFailed", ""),
        (
            1,
            'Traceback\n  File "/x/torch/distributed/c10d.py", line 3, in reduce\nRuntimeError: peer\n' + CUT_OFF,
            "WorkerFailed",
            "RuntimeError: peer",
        ),
        (3, "no luck\n----\n", "WorkerFailed", "no luck"),
        (64, "params.steps: must be positive\n", "WorkerFailed", "params.steps: must be positive"),
        (137, "", "", ""),
    ],
)
def test_of_a_pod_without_an_agent_the_workers_are_judged_by_code_and_last_words(code, log, reason, message):
    found = seen(pod(spec={**ON_NODE, "subdomain": "ty-cvrp"}, status=ended(code, "Error", log))).pod
    assert (found.reason, found.message, found.exit_code) == (reason, message, code)


def test_the_end_of_a_log_is_kept_if_nothing_else_explains_the_end():
    plain = {**ON_NODE, "subdomain": "ty-cvrp"}
    log = (
        "\n".join(f"step {number}" for number in range(30))
        + "\n\x1b[31mTraceback\x1b[0m\n\tin f\r\n\nValueError: no\x07 luck\n"
    )
    (*before, raised, place, error) = seen(pod(spec=plain, status=ended(1, "Error", log))).pod.lines
    assert (raised, place, error) == ("Traceback", "    in f", "ValueError: no luck")
    assert before[0] == "step 14", "twenty lines, an empty one among them"
    assert seen(pod(spec=plain, status=ended(1, "Error", TORCHRUN))).pod.lines == ("ValueError: no luck",)
    assert seen(pod(spec=plain, status=ended(0, "Completed", log))).pod.lines == ()
    assert seen(pod(spec=plain, status=ended(128, "StartError", "exec: not found"))).pod.lines == ()
    assert seen(pod(spec=ON_NODE, status=ended(1, "Error", "Traceback\nMemoryError\n"))).pod.lines == (
        "Traceback",
        "MemoryError",
    ), "an agent that crashed"
    assert seen(pod(spec=ON_NODE, status=ended(1, "Error", told(1, exception="ValueError")))).pod.lines == ()


def test_of_a_pod_without_an_agent_it_is_the_jobs_own_command_that_is_not_there():
    words = 'failed to create task: runc: exec: "nosuch": executable file not found in $PATH'
    found = seen(pod(spec={**ON_NODE, "subdomain": "ty-cvrp"}, status=ended(128, "StartError", words))).pod
    assert (found.reason, found.message) == ("CommandNotFound", words)
