"""Ask the agent in each pod of a job for the stacks of its ranks."""

from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.ranks import RankStacks, read
from torchyard.client.remote import jobs
from torchyard.client.remote.pod_exec import program
from torchyard.client.remote.session import Remote
from torchyard.kubernetes.manifests import names


async def stacks_of(remote: Remote, name: str) -> list[RankStacks]:
    """Ask the workers of every running pod, one pod after the other.

    Raises:
        TorchYardError: none runs, or the job has no agents.
    """
    job = jobs.typed(await jobs.get(remote, name))
    if job.spec.launcher.kind != "agent":
        raise TorchYardError(f"{name!r} has no agent (launcher.kind: none) to write stacks", "use py-spy in its pods")
    running = [pod.name for pod in await jobs.pods(remote, job) if pod.phase == "Running"]
    if not running:
        raise TorchYardError(f"no pod of {name!r} runs", f"`torchyard explain {name}{remote.flags}` says why", FAILED)
    found: list[RankStacks] = []
    for pod in running:
        words = ("python3", names.AGENT_INSTALLED, "stacks", names.RUN)
        found += read(b"".join([part async for part in program(remote, pod, *words)]), pod)
    return found
