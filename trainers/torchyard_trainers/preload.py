"""Imports for the zygote: all modules that take time to import, before workers are forked.

For `TORCHYARD_PRELOAD=torchyard_trainers.preload`. Initialises no device and starts no thread. What only some workloads
need is imported for the one that `TORCHYARD_CONFIG` names.
"""

import json
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp  # noqa: F401 - imported for the children

import torchyard_trainers.core.worker
import torchyard_trainers.cvrp.task
import torchyard_trainers.vecrl.task  # noqa: F401 - imported for the children
from torchyard_trainers.registry import WITH_TRANSFORMERS

with suppress(ImportError):
    import tensorboard.summary.writer.event_file_writer  # noqa: F401 - imported for the children


def import_workload(name: str) -> None:
    """Import a workload and, where it needs them, the models of transformers: seconds of each rank in each round."""
    if name not in WITH_TRANSFORMERS:
        return
    for module in ("generation", "modeling_utils", "models.auto.modeling_auto"):
        import_module(f"transformers.{module}")
    import_module(f"torchyard_trainers.{name}.task")


def import_compiler() -> None:
    """Do what the first call of a compiled block would, and remember it: four seconds of each rank in each round.

    It imports the compiler, and hashes the sources of PyTorch and of Triton, by which compiled code is found again.
    """
    import_module("torch._inductor.compile_fx")
    for of_sources in ("torch_key", "triton_key"):  # private; a version without them computes its own in each rank
        hashed = getattr(import_module("torch._inductor.codecache"), of_sources, None)
        if hashed is not None:
            hashed()


def settings_of_job() -> tuple[str, bool]:
    """Return the workload of this pod's job, and whether it is compiled.

    "" and False where the config cannot be read: its workers report that.
    """
    try:
        config = json.loads(Path(os.environ["TORCHYARD_CONFIG"]).read_bytes())
        return str(config["trainer"]["name"]), config.get("parallelism", {}).get("compile") is True
    except (AttributeError, KeyError, TypeError, ValueError, OSError):
        return "", False


workload, compiled = settings_of_job()
import_workload(workload)
if compiled:
    import_compiler()
