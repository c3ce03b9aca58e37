"""`python -m torchyard_trainers gpus`: GPUs of this machine as JSON, chosen by conditions. Imports no torch."""

import json
import re
from argparse import ArgumentParser, Namespace
from typing import Any

from torchyard_trainers.core import gpus
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.memory.fit import fit


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments; `gpus.select` documents them."""
    parser.add_argument("--select", type=int, metavar="N", help="only the N best that meet every condition")
    parser.add_argument("--min-free-memory", type=int, default=0, metavar="BYTES")
    parser.add_argument("--min-total-memory", type=int, default=0, metavar="BYTES")
    parser.add_argument("--max-utilization", type=int, default=100, metavar="PERCENT")
    parser.add_argument("--min-compute-capability", default="0.0", metavar="X.Y")
    parser.add_argument("--product", default="", metavar="REGEX")
    parser.add_argument("--order", choices=("index", "free-memory", "utilization"), default="free-memory")
    parser.add_argument("--fit", type=int, metavar="PARAMETERS", help="how many of them train a model of that size")


def text(options: Namespace) -> str:
    """Return the answer as JSON: `{"gpus": [...], "driver": ..., "fit": ...}`.

    Raises:
        ConfigError: no GPU, or too few, match, or a condition is invalid.
    """
    found = gpus.available()
    try:
        if options.select is not None:
            found = gpus.select(
                options.select,
                min_free_memory=options.min_free_memory,
                min_total_memory=options.min_total_memory,
                max_utilization=options.max_utilization,
                min_compute_capability=_capability(options.min_compute_capability),
                product=_expression(options.product),
                order=options.order,
                among=found,
            )
        fitted = fit(options.fit, gpus=found)._asdict() if options.fit is not None else None
    except gpus.NoGpuError as error:
        raise ConfigError(str(error)) from error
    answer = {"driver": gpus.driver_version(), "gpus": [document(gpu) for gpu in found], "fit": fitted}
    return json.dumps(answer, indent=2) + "\n"


def _capability(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise ConfigError(f"--min-compute-capability: {text!r} is not a compute capability; write it as 8.0")
    return int(match[1]), int(match[2] or 0)


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"--product: {text!r} is not a regular expression: {error}; correct it") from error
    return text


def document(gpu: gpus.Gpu) -> dict[str, Any]:
    """Return a GPU under the names of the status."""
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "product": gpu.product,
        "memoryTotalBytes": gpu.memory_total,
        "memoryUsedBytes": gpu.memory_used,
        "utilization": gpu.utilization,
        "computeCapability": "{}.{}".format(*gpu.compute_capability),
    }
