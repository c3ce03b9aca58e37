"""What happens to pods of a job, done to them for real: each function breaks one thing and returns at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from kubernetes import client, config, stream
from tests.support.cluster import testbed
from tests.support.cluster.jobs import Jobs
from tests.support.cluster.operators import PATIENCE

from torchyard.kubernetes.client.api import MERGE_PATCH
from torchyard.kubernetes.manifests import names

KILL = """
import json, os, signal, time
pids = json.load(open("/torchyard/run/workers.json"))["pids"]
print(time.time())
os.kill(int(pids["{rank}"]), signal.SIGKILL)
"""
# Files in memory count for the pod and for no process: whom the kernel kills at the limit is the scores' choice alone.
EXHAUST = """
import os, time
files = ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events")
group = next(filter(os.path.exists, files))
def kills():
    return dict(line.split() for line in open(group))["oom_kill"]
before = kills()
with open("/dev/shm/exhaust", "wb", buffering=0) as file:
    while kills() == before:
        file.write(bytes(1 << 20))
print(time.time())
os.unlink("/dev/shm/exhaust")
"""
# Whatever process of a node is the first of this pod's trainer.
KILL_AGENT = """
says() {{ grep -qz '^TORCHYARD_ENV=.*"TORCHYARD_'$1'": "'$2'"' $process/environ; }}
for process in /proc/[0-9]*; do
  grep -qE '^NSpid:.*[[:space:]]1$' $process/status && says POD_NAME {pod} && says NAMESPACE {namespace} &&
  kill -KILL ${{process#/proc/}} && echo killed
done 2> /dev/null
"""


async def kill_worker(jobs: Jobs, pod: str, rank: int) -> float:
    """`kill -9` of one worker; when it was, in unix seconds of its node."""
    return await _timed(jobs.namespace, pod, "python3", "-c", KILL.format(rank=rank))


async def exhaust_memory(jobs: Jobs, pod: str) -> float:
    """Use up the memory of the pod, which must have a limit, until the kernel has killed one of its processes; when."""
    return await _timed(jobs.namespace, pod, "python3", "-c", EXHAUST)


async def kill_agent(jobs: Jobs, pod: str, node: testbed.Node) -> None:
    """`kill -9` of the first process of the pod's trainer, which only its node may send."""
    script = KILL_AGENT.format(pod=pod, namespace=jobs.namespace)
    said = await asyncio.to_thread(node.run, "sh", "-c", f"{script}:")
    assert said == "killed", f"no agent of {pod} on {node.name}: {said}"


async def evict(jobs: Jobs, pod: str) -> None:
    """The eviction API, as `kubectl drain` and autoscalers call it."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": jobs.namespace}}
    await jobs.api.request("POST", f"{jobs.core}/pods/{pod}/eviction", body=body)


async def cordon(jobs: Jobs, node: str, *, taken: bool = True) -> None:
    """Cordon the node, or uncordon it."""
    body = {"spec": {"unschedulable": taken or None}}
    await jobs.api.request("PATCH", f"/api/v1/nodes/{node}", body=body, content_type=MERGE_PATCH)


@contextlib.asynccontextmanager
async def drained(jobs: Jobs, name: str, node: str) -> AsyncIterator[None]:
    """Cordon the node for the block, and evict every pod of the job there."""
    await cordon(jobs, node)
    try:
        for pod, each in (await jobs.pods(name)).items():
            if each["spec"].get("nodeName") == node:
                await evict(jobs, pod)
        yield
    finally:
        await cordon(jobs, node, taken=False)


async def _timed(namespace: str, pod: str, *argv: str) -> float:
    return float((await execute(namespace, pod, *argv)).split()[-1])


async def execute(namespace: str, pod: str, *argv: str, container: str = names.TRAINER) -> str:
    """Run a program in a container of a pod, by default the trainer's, and return what it printed."""

    def run() -> str:
        core = client.CoreV1Api(config.new_client_from_config())
        streams = {"stdin": False, "stdout": True, "stderr": True, "tty": False}
        call = core.connect_get_namespaced_pod_exec
        ws = stream.stream(
            call, pod, namespace, container=container, command=list(argv), _preload_content=False, **streams
        )
        ws.run_forever(timeout=PATIENCE)
        code, said = ws.returncode, ws.read_all()  # in this order: reading everything forgets the code
        assert code == 0, f"{' '.join(argv)} in {pod}: exit code {code}\n{said}"
        return said

    return await asyncio.to_thread(run)
