"""The environment that the user set: without variables of launchers, and without what TorchYard added to it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

ARCHIVE = re.compile(r"torchyard-agent-[0-9a-f]+\.pyz")
"""Name of the archive of an agent."""
THREADS, THREADS_SET = "OMP_NUM_THREADS", "TORCHYARD_OMP_NUM_THREADS"
"""A variable of users, and the value of it that a pod got because the user set none."""

_LAUNCHER_PREFIXES = ("TORCHYARD_", "TORCHELASTIC_", "PET_", "KUBEFLOW_TRAINER_")
_OF_USERS = frozenset({"TORCHYARD_DEBUG"})
_LAUNCHER_NAMES = frozenset({
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
})  # fmt: skip


def users_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the user set.

    A program of a run may start runs (a driver). With what the agent of the one adds for its program, the hooks of
    both agents would call each other, and files of the inner run would be written into the folder of the outer one.
    """
    env = {
        name: value
        for name, value in inherited.items()
        if name in _OF_USERS or not (name in _LAUNCHER_NAMES or name.startswith(_LAUNCHER_PREFIXES))
    }
    run_dir = inherited.get("TORCHYARD_RUN_DIR")
    if run_dir is None:
        return env
    paths = users_paths(env.pop("PYTHONPATH", "").split(os.pathsep), run_dir)
    env = {name: value for name, value in env.items() if not value.startswith(f"{run_dir}/")}
    if env.get(THREADS) == inherited.get(THREADS_SET):
        env.pop(THREADS, None)
    return {**env, "PYTHONPATH": os.pathsep.join(paths)} if paths else env


def users_paths(paths: list[str], run_dir: str) -> list[str]:
    """Return the entries of a search path without the hooks of the agent of `run_dir` and without its archive."""
    return [
        path for path in paths if path and not path.startswith(f"{run_dir}/") and not ARCHIVE.fullmatch(Path(path).name)
    ]
