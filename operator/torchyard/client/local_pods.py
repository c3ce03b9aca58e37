"""Request stacks and profiles from the living pods of a run."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from torchyard.api.resource import TrainingJob
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.profile_request import FILE, left_in, refuse_no_such_rank, refuse_overwriting
from torchyard.client.ranks import RankStacks, read
from torchyard.interpreter import own_environment, own_python
from torchyard.local.run import write_atomic
from torchyard.local.zipapp import agent_zipapp


def stacks(pods: Sequence[Path], cache: Path) -> list[RankStacks]:
    """Return the stacks of the workers of a run.

    Args:
        pods: folders of the pods that live.
        cache: folder of the built agent.

    Raises:
        TorchYardError: a pod's workers cannot be asked.
    """
    found: list[RankStacks] = []
    for pod in pods:
        asked = own_python(str(agent_zipapp(cache)), "stacks", str(pod / "run"))
        done = subprocess.run(asked, capture_output=True, env=own_environment(os.environ), check=False)
        if done.returncode != 0:
            raise TorchYardError(f"{pod.name}: {done.stderr.decode(errors='replace').strip()[-300:]}", code=FAILED)
        found += read(done.stdout, pod.name)
    return found


def profile(job: TrainingJob, pods: Sequence[Path], request: str, *, replace: bool = False) -> int:
    """Write the request into the run folder of every pod that lives; return how many there are.

    Raises:
        TorchYardError: the run has no such rank, or an earlier request would be lost.
    """
    refuse_no_such_rank(job, request)
    if not replace:
        refuse_overwriting(job, (left_in(pod / "run") for pod in pods))
    for pod in pods:
        write_atomic(pod / "run" / FILE, request.encode())
    return len(pods)
