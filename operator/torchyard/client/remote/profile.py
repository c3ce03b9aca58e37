"""Request a profile: a file in the run folder of each pod of a job."""

import json

from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.profile_request import FILE, Left, refuse_deaf, refuse_no_such_rank, refuse_overwriting
from torchyard.client.remote import jobs
from torchyard.client.remote.pod_exec import python
from torchyard.client.remote.session import Remote
from torchyard.kubernetes.manifests import names

# What `wish.left_in` reads on this machine.
LEFT = """
import glob, json, os, sys
run, name = sys.argv[1:]
path = os.path.join(run, name)
texts = [open(path).read() for path in glob.glob(os.path.join(glob.escape(run), "profiled.*"))]
print(json.dumps([open(path).read() if os.path.exists(path) else "", texts]))
"""
_LEAVE = """
import os, sys
path, wish = sys.argv[1:]
with open(path + ".tmp", "w") as file: file.write(wish)
os.replace(path + ".tmp", path)
"""


async def ask_for_profile(remote: Remote, name: str, wish: str, *, replace: bool) -> int:
    """Write the request into every running pod; return how many there are.

    Raises:
        TorchYardError: no pod runs, the program does not support it or has no such rank, or a request is pending.
    """
    job = jobs.typed(await jobs.get(remote, name))
    refuse_deaf(job)
    refuse_no_such_rank(job, wish)
    running = [pod.name for pod in await jobs.pods(remote, job) if pod.phase == "Running"]
    if not running:
        raise TorchYardError(f"no pod of {name!r} runs", f"`torchyard explain {name}{remote.flags}` says why", FAILED)
    if not replace:
        said = [b"".join([part async for part in python(remote, pod, LEFT, names.RUN, FILE)]) for pod in running]
        refuse_overwriting(job, (Left(*json.loads(text)) for text in said), remote.flags)
    for pod in running:
        async for _ in python(remote, pod, _LEAVE, f"{names.RUN}/{FILE}", wish):
            pass
    return len(running)
