"""`torchyard gpus`."""

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any, Literal

from torchyard.api.values import plural
from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED, RefusalError

GIB = 2**30
# Arithmetic on a number of parameters: what else a step takes depends on the model, its batch and how it is spread.
UNCOUNTED = (
    "Not counted: activations, and whole gradients where fsdp accumulates micro-batches; "
    "`torchyard plan FILE` counts all of a built-in workload's step."
)


def gpus_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `gpus`."""
    parser.add_argument(
        "--select", metavar="N", type=common.natural, help="select the N best GPUs that meet every condition"
    )
    parser.add_argument(
        "--min-free-memory", metavar="SIZE", type=size, help="with --select: least unused memory, as in 40Gi"
    )
    parser.add_argument("--min-total-memory", metavar="SIZE", type=size, help="with --select: least total memory")
    parser.add_argument(
        "--max-utilization",
        metavar="PERCENT",
        type=common.natural,
        help="with --select: highest utilization, in percent",
    )
    parser.add_argument(
        "--min-compute-capability",
        metavar="X.Y",
        type=capability,
        help="with --select: lowest compute capability; bf16 needs 8.0",
    )
    parser.add_argument(
        "--product",
        metavar="REGEX",
        type=expression,
        help="with --select: regular expression that the product name must match",
    )
    parser.add_argument(
        "--order", choices=("free-memory", "utilization", "index"), help="with --select: how to order the list"
    )
    parser.add_argument(
        "--fit",
        metavar="PARAMETERS",
        type=parameters,
        help="show how many GPUs hold the weights, gradients and AdamW state of a model of this size, such as 7B; "
        "activations are not counted",
    )
    common.output(parser, "json", help="print one document")


def gpus(*, select: int | None, fit: int | None, output: Literal["json"] | None, **conditions: Any) -> int:
    """Carry out `torchyard gpus`.

    Lists the GPUs that this user may use, as reported by NVML, with the memory and utilization of all processes.

    With --select, prints UUIDs for CUDA_VISIBLE_DEVICES or spec.gpu.ids.
    """
    from torchyard.client.trainers import document

    given = {name: value for name, value in conditions.items() if value is not None}
    if given and select is None:
        first = next(iter(given)).replace("_", "-")
        raise RefusalError(f"--{first} is a condition of --select", "add --select N")
    wishes = {**given, "select": select, "fit": fit}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in wishes.items() if value is not None]
    found = document("gpus", *words)
    if output is not None:
        from torchyard.cli.output import emit

        emit(found, output)
        return SUCCEEDED
    for line in shown(found):
        print(line)
    return SUCCEEDED


def shown(found: dict[str, Any]) -> list[str]:
    """Return the answer as lines."""
    from torchyard.api.formatting import clean
    from torchyard.cli.views.table import lines

    if not found["gpus"]:
        return ["no GPU" + ("" if found["driver"] else ": there is no NVIDIA driver")]
    rows = [
        [
            str(gpu["index"]),
            clean(gpu["product"]),
            f"{gpu['memoryUsedBytes'] / GIB:.1f}/{gpu['memoryTotalBytes'] / GIB:.1f} GiB",
            f"{gpu['utilization']} %" if gpu["utilization"] is not None else "",
            gpu["computeCapability"],
            clean(gpu["uuid"]),
        ]
        for gpu in found["gpus"]
    ]
    table = lines(("GPU", "PRODUCT", "MEMORY", "BUSY", "CC", "UUID"), rows)
    fit = found["fit"]
    if fit is not None:
        what = f"{plural(fit['gpus'], 'GPU')} with strategy {fit['strategy']}"
        table += [f"{what}: {fit['state_bytes'] / GIB:.1f} GiB of weights, gradients and optimizer state", UNCOUNTED]
    return table


def capability(text: str) -> str:
    """Return a compute capability such as 8.0."""
    import re

    from torchyard.api.values import COMPUTE_CAPABILITY_PATTERN

    if not re.fullmatch(COMPUTE_CAPABILITY_PATTERN, text):
        raise ArgumentTypeError(f"{text!r} is not a compute capability; write it like 8.0")
    return text


def expression(text: str) -> str:
    """Return a regular expression."""
    import re

    try:
        re.compile(text)
    except re.error as error:
        raise ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from error
    return text


def size(text: str) -> int:
    """Return bytes of a quantity such as 40Gi."""
    import re

    from torchyard.api.values import QUANTITY_PATTERN, amount

    if not re.fullmatch(QUANTITY_PATTERN, text):
        raise ArgumentTypeError(f"{text!r} is not a size; write it like 40Gi")
    return int(amount(text))


def parameters(text: str) -> int:
    """Return a number of parameters such as 350M or 7B."""
    units = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1.0)
    try:
        found = int(float(number) * unit)
    except (ValueError, OverflowError):
        found = 0
    if found < 1:
        raise ArgumentTypeError(f"{text!r} is not a number of parameters; write it like 350M or 7B")
    return found
