"""What is asked of the living pods of a run: their stacks, and a profile."""

import os
import subprocess
from pathlib import Path

from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.local import Run, find, load
from torchyard.client.profile_request import FILE, left_in, refuse_deaf, refuse_no_such_rank, refuse_overwriting
from torchyard.client.ranks import RankStacks, read
from torchyard.interpreter import own_environment, own_python
from torchyard.local.run import is_locked, write_atomic
from torchyard.local.zipapp import agent_zipapp


def stacks(name: str) -> list[RankStacks]:
    """Ask the workers of a run where they stand.

    Raises:
        TorchYardError: nothing runs, or a pod's workers cannot be asked.
    """
    run, pods = _living(name)
    if run.over or not pods:
        raise run.refusal(name)
    found: list[RankStacks] = []
    for pod in pods:
        asked = own_python(str(agent_zipapp(run.folder.home / "cache")), "stacks", str(pod / "run"))
        done = subprocess.run(asked, capture_output=True, env=own_environment(os.environ), check=False)
        if done.returncode != 0:
            raise TorchYardError(f"{pod.name}: {done.stderr.decode(errors='replace').strip()[-300:]}", code=FAILED)
        found += read(done.stdout, pod.name)
    return found


def profile(name: str, wish: str, *, replace: bool = False) -> int:
    """Leave the wish in the run folder of every pod that lives; return how many there are.

    Raises:
        TorchYardError: nothing runs, what runs is not ours or has no such rank, or an earlier wish would be lost.
    """
    run, pods = _living(name)
    refuse_deaf(run.job)
    if run.over or not pods:
        raise run.refusal(name)
    refuse_no_such_rank(run.job, wish)
    if not replace:
        refuse_overwriting(run.job, (left_in(pod / "run") for pod in pods))
    for pod in pods:
        write_atomic(pod / "run" / FILE, wish.encode())
    return len(pods)


def _living(name: str) -> tuple[Run, list[Path]]:
    folder = find(name)
    pods = [pod for pod in sorted(folder.pods.glob("*")) if is_locked(pod / "lock")]
    return load(folder), pods
