"""Imports for the zygote: all modules that take time to import, before workers are forked.

For `TORCHYARD_PRELOAD=torchyard_trainers.preload`. Initialises no device and starts no thread. What only some workloads
need is imported if `TORCHYARD_CONFIG` names one of those.
"""

import json
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp  # noqa: F401 - imported for the children

import torchyard_trainers.core.worker
import torchyard_trainers.cvrp.task
import torchyard_trainers.vecrl.task  # noqa: F401 - imported for the children
from torchyard_trainers.registry import WITH_TRANSFORMERS

_MODELS = ("pi0", "qwen2_vl", "qwen3")  # architectures of the presets


def import_transformers() -> None:
    """Import all workloads that need transformers, and models that they build: seconds of each rank in each round.

    Nearly all of the time is spent in what they share, so that one import serves jobs of all of them. If something
    cannot be imported, the workers that need it report that.
    """
    for module in (
        "torch.nn.modules.linear_cross_entropy",  # the first loss would import it
        *(f"transformers.{each}" for each in ("generation", "modeling_utils", "models.auto.modeling_auto")),
        *(f"torchyard_trainers.{workload}.task" for workload in WITH_TRANSFORMERS),
        *(f"transformers.models.{model}.modeling_{model}" for model in _MODELS),
    ):
        with suppress(ImportError):
            import_module(module)


def import_event_files() -> None:
    """Import what rank 0 writes event files with: a fifth of a second, which no other pod of a gang needs."""
    with suppress(ImportError):
        import_module("tensorboard.summary.writer.event_file_writer")


def import_compiler() -> None:
    """Do what the first call of a compiled block would, and remember it: four seconds of each rank in each round.

    It imports the compiler, and hashes the sources of PyTorch and of Triton, by which compiled code is found again.
    """
    import_module("torch._inductor.compile_fx")
    for of_sources in ("torch_key", "triton_key"):  # private; a version without them computes its own in each rank
        hashed = getattr(import_module("torch._inductor.codecache"), of_sources, None)
        if hashed is not None:
            hashed()


class Settings(NamedTuple):
    """What the imports of a job depend on."""

    workload: str = ""
    compiled: bool = False
    adapters: bool = False


def settings_of_job() -> Settings:
    """Return the settings of this pod's job; the defaults where its config cannot be read, which its workers report."""
    try:
        config = json.loads(Path(os.environ["TORCHYARD_CONFIG"]).read_bytes())
        return Settings(
            workload=str(config["trainer"]["name"]),
            compiled=config.get("parallelism", {}).get("compile") is True,
            adapters=config["trainer"].get("params", {}).get("loraRank") is not None,
        )
    except (AttributeError, KeyError, TypeError, ValueError, OSError):
        return Settings()


workload, compiled, adapters = settings_of_job()
if workload in WITH_TRANSFORMERS:
    import_transformers()
if adapters:
    with suppress(ImportError):
        import_module("peft")
if compiled:
    import_compiler()
if os.environ.get("TORCHYARD_POD_INDEX", "0") == "0":
    import_event_files()
