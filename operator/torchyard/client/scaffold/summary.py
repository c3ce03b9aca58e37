"""What a script is: its framework, whether its processes work together, and what it does with GPUs and checkpoints."""

import ast
from enum import StrEnum
from typing import NamedTuple

from torchyard.client.scaffold.options import Option, options_of
from torchyard.client.scaffold.source import dotted, literal

CHECKPOINT_FOLDER = "TORCHYARD_CHECKPOINT_DIR"


class Framework(StrEnum):
    """What runs the training loop, in words."""

    TRANSFORMERS = "the Trainer of transformers"
    LIGHTNING = "PyTorch Lightning"
    ACCELERATE = "Accelerate"
    TORCH = "plain PyTorch"
    PYTHON = "no PyTorch"


class Summary(NamedTuple):
    """What the source of a script shows."""

    framework: Framework
    distributed: bool
    """Whether several processes train one model."""
    cuda: bool
    """Whether it uses GPUs where there are some."""
    options: tuple[Option, ...]
    parser: str
    """Library that parses its command line; empty: none that is known."""
    checkpoints: bool
    """Whether it reads the variable of the folder that outlives a restart."""
    reports: bool
    """Whether it reports metrics to TorchYard."""


# Frameworks by a package that is imported and a call that starts the loop, in the order in which they are looked for:
# each uses those behind it.
_LOOPS: tuple[tuple[Framework, frozenset[str], tuple[str, ...]], ...] = (
    (Framework.LIGHTNING, frozenset({"lightning", "pytorch_lightning"}), ("Trainer", "Fabric", "LightningCLI")),
    (Framework.TRANSFORMERS, frozenset({"transformers", "trl", "peft"}), ("Trainer",)),
    (Framework.ACCELERATE, frozenset({"accelerate"}), ("Accelerator",)),
)
_GANGS = frozenset(
    {"init_process_group", "DistributedDataParallel", "DDP", "fully_shard", "FullyShardedDataParallel", "FSDP"}
    | {"init_device_mesh", "initialize_distributed", "deepspeed.initialize"}
)


def summary_of(tree: ast.Module) -> Summary:
    """Return the summary that the source of a script shows; nothing of it is run or imported."""
    packages, calls, names, texts = set[str](), set[str](), set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            calls.update({name, name.rpartition(".")[2]})
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and (text := literal(node)) is not None:
            texts.add(text)
    framework = next((each for each, wanted, ends in _LOOPS if packages & wanted and _is_called(calls, ends)), None)
    if framework is None:
        framework = Framework.TORCH if packages & {"torch", "deepspeed", "torchvision"} else Framework.PYTHON
    of_framework = framework not in {Framework.TORCH, Framework.PYTHON}
    parser, options = options_of(tree, packages)
    return Summary(
        framework=framework,
        distributed=of_framework or bool(calls & _GANGS),
        cuda=of_framework or "cuda" in names or any(text == "cuda" or text.startswith("cuda:") for text in texts),
        options=options,
        parser=parser,
        checkpoints=CHECKPOINT_FOLDER in texts,
        reports="torchyard_agent" in packages,
    )


def _is_called(calls: set[str], ends: tuple[str, ...]) -> bool:
    return any(call.endswith(ends) for call in calls)
