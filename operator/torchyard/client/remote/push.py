"""Push code into the running pods of a job, by `pods/exec`: its next round then starts in them."""

import asyncio
from collections.abc import Sequence

from torchyard.client.backend import Notice
from torchyard.client.remote.session import Remote
from torchyard.kubernetes.client.errors import NotFound, Rejected
from torchyard.kubernetes.client.exec import CommandFailed, run
from torchyard.kubernetes.manifests import names
from torchyard.reconcile.observed import Pod
from torchyard.reconcile.ports import Unavailable

MOST_AT_ONCE = 16
SECONDS = 60.0
"""How long a pod may take to verify and unpack code; the kubelet may also be slow to start the command."""
_FORBIDDEN = 403
# Isolated and without `site`: nothing of the image or of the user's is imported.
_RECEIVE = (
    f"import sys; sys.path.insert(0, {names.AGENT_INSTALLED!r}); "
    "from torchyard_agent.workers.push import main; main(sys.argv[1:])"
)


async def push(remote: Remote, pods: Sequence[Pod], digest: str, parts: Sequence[bytes], notice: Notice) -> bool:
    """Push code into pods; return False if the user may not execute commands in them.

    A pod that does not take it is replaced by a new one, which gets it from the ConfigMaps.

    Args:
        remote: the cluster.
        pods: that run.
        digest: of the code.
        parts: of its archive.
        notice: called with why a pod does not take it.
    """
    archive = b"".join(parts)
    few = asyncio.Semaphore(MOST_AT_ONCE)
    command = ["python3", "-I", "-S", "-c", _RECEIVE, names.CODE, digest, str(len(archive))]

    async def one(pod: Pod) -> bool:
        async with few:
            try:
                async for _ in run(
                    remote.api, remote.namespace, pod.name, names.TRAINER, command, stdin=archive, seconds=SECONDS
                ):
                    pass
            except Rejected as error:
                if error.code == _FORBIDDEN:
                    return False
                notice(f"torchyard: {pod.name} gets a new pod in its place: {error.message}")
            except (CommandFailed, NotFound, Unavailable) as error:
                notice(f"torchyard: {pod.name} gets a new pod in its place, since it did not take the code: {error}")
        return True

    return all(await asyncio.gather(*map(one, pods)))
