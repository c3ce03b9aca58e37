"""The environment workers inherit, and the hooks folder on their PYTHONPATH."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Dict, List, Mapping, MutableMapping

from torchyard_agent.settings import Settings
from torchyard_agent.workers.hooks import SITECUSTOMIZE
from torchyard_agent.workers.zygote_client import INHERITED, LOCATION

# Set for the zygote alone, unless the user did: its import must start no thread and no CUDA.
_ZYGOTE_ONLY = ("OPENBLAS_NUM_THREADS", "PYTORCH_NVML_BASED_CUDA_CHECK")
REMOVED_FROM_WORKERS: List[str] = [name for name in _ZYGOTE_ONLY if name not in os.environ]

# Freed memory stays with the worker: a step that requests memory from the kernel again causes thousands of page faults
# (decision 14). As glibc reads them at a process's start: nothing is mapped by itself, the heap shrinks from 2 GiB on,
# and where kernel and glibc can, it has huge pages.
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "GLIBC_TUNABLES": _HUGE_PAGES,
}
_MEMORY_SETTINGS = {"MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"}


def unpack(env: MutableMapping[str, str]) -> None:
    """Replace the two variables of a pod that hold JSON objects by the variables in them.

    TORCHYARD_ENV wins over what is set already, TORCHYARD_ENV_DEFAULTS gives way to it: to an image's own variables
    and to those of `envFrom`.

    Raises:
        ValueError: names the variable, and what it should hold.
    """
    defaults, settings = (_packed(env.pop(name, "{}"), name) for name in ("TORCHYARD_ENV_DEFAULTS", "TORCHYARD_ENV"))
    env.update({**defaults, **env, **settings})


def _packed(text: str, name: str) -> Dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"{name} must be a JSON object of strings, got `{text[:200]}`")
    return found


def worker_environment(
    env: Mapping[str, str], settings: Settings, progress_url: str, token: Path, gpus: int
) -> Dict[str, str]:
    """Return the agent's environment without its token file, with the variables that all workers need.

    Args:
        env: the agent's own environment.
        settings: its settings.
        progress_url: where Hugging Face's Kubeflow callback is to post. Plain HTTP on loopback: the callback hands the
            URL to urllib and builds a TLS context only if a CA is given; what it insists on is a token file.
        token: file with the token of that call.
        gpus: GPUs that workers can use; without one, freed memory stays with the process.
    """
    workers = {
        name: value
        for name, value in env.items()
        if name
        not in {
            "TORCHYARD_TOKEN_FILE",
            "TORCHYARD_INPUTS",
            "TORCHYARD_CODE_SOURCE",
            "TORCHYARD_REQUIREMENTS",
            INHERITED,
        }
    }
    path = [str(hooks_folder(settings))] if settings.hooks else []
    path += [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    workers["PYTHONPATH"] = os.pathsep.join([*path, LOCATION])
    workers["TORCHYARD_RUN_DIR"] = str(settings.run_dir)
    workers["TORCHYARD_LOG_DIR"] = str(settings.log_dir)
    workers.setdefault("PYTHONUNBUFFERED", "1")
    workers.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(settings.run_dir / "fr" / "rank_"))
    if not gpus and not _configures_allocator(env):
        workers.update(KEEP_MEMORY)
        if env.get("GLIBC_TUNABLES"):
            workers["GLIBC_TUNABLES"] = f"{env['GLIBC_TUNABLES']}:{_HUGE_PAGES}"
    if "KUBEFLOW_TRAINER_SERVER_URL" not in env:
        workers["KUBEFLOW_TRAINER_SERVER_URL"] = progress_url
        workers["KUBEFLOW_TRAINER_SERVER_TOKEN"] = str(token)
        for name in ("no_proxy", "NO_PROXY"):
            workers[name] = ",".join(filter(None, [env.get(name, ""), "127.0.0.1"]))
    return workers


def with_variables(env: Mapping[str, str], variables: Mapping[str, str]) -> Dict[str, str]:
    """Return an environment in which variables of the spec have other values; the agent's own keep theirs."""
    return {**env, **{name: value for name, value in variables.items() if not name.startswith("TORCHYARD_")}}


def zygote_environment(env: Mapping[str, str], procs: int) -> Dict[str, str]:
    """Return the workers' environment, with variables that keep the zygote's imports from starting threads or CUDA."""
    zygote = {**dict.fromkeys(REMOVED_FROM_WORKERS, "1"), **env}
    if procs > 1:
        zygote.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does; OpenMP reads it once, when torch loads it
    return zygote


def _configures_allocator(env: Mapping[str, str]) -> bool:
    # One of these changes what the others mean: a user who sets one of them controls all of them.
    return not _MEMORY_SETTINGS.isdisjoint(env) or "glibc.malloc." in env.get("GLIBC_TUNABLES", "")


def hooks_folder(settings: Settings) -> Path:
    """Return the folder of `sitecustomize.py`."""
    return settings.run_dir / "hooks"


def write_hooks(settings: Settings) -> None:
    """Write `sitecustomize.py` into its folder."""
    (settings.run_dir / "fr").mkdir(exist_ok=True)
    folder = hooks_folder(settings)
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
