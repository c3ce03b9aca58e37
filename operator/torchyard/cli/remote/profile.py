"""A wish for a profile, left in the run folder of each pod of a job."""

from torchyard.cli.errors import FAILED, RefusalError
from torchyard.cli.remote import jobs
from torchyard.cli.remote.inside import python
from torchyard.cli.remote.session import Remote
from torchyard.cli.wish import FILE, refuse_deaf
from torchyard.cluster.kube.manifest import names

_LEAVE = """
import os, sys
path, wish = sys.argv[1:]
with open(path + ".tmp", "w") as file: file.write(wish)
os.replace(path + ".tmp", path)
"""


async def ask_for_profile(remote: Remote, name: str, wish: str) -> int:
    """Leave the wish in every running pod; give how many there are.

    Raises:
        RefusalError: none runs, or the job's program would not hear.
    """
    job = jobs.typed(await jobs.get(remote, name))
    refuse_deaf(name, built_in=job.spec.trainer is not None)
    running = [pod.name for pod in await jobs.pods(remote, job) if pod.phase == "Running"]
    if not running:
        raise RefusalError(f"no pod of {name!r} runs", f"`torchyard explain {name}{remote.flags}` says why", FAILED)
    for pod in running:
        async for _ in python(remote, pod, _LEAVE, f"{names.RUN}/{FILE}", wish):
            pass
    return len(running)
