"""The smallest number of GPUs, and the strategy, that a model can be trained with. Arithmetic only; imports no torch.

For the memory of a real job, `torchyard plan` runs its step with fake tensors; this estimate needs no job.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from torchyard_trainers.core.gpus import Gpu, NoGpuError

USABLE = 0.85  # of a GPU's memory; the rest is fragmentation, libraries and buffers of collectives
# Bytes per parameter: weights, gradients, fp32 masters, moments. Mixed precision needs the same (2 + 2 + 4 + 8).
STATE_BYTES = {"adamw": 16, "momentum": 12, "sgd": 8}
# Transformers of usual shape: parameters = 12 layers width^2, width = 128 layers.
_WIDTH_OF_LAYERS = 128
# Bytes that a layer stores for its backward pass, per token and unit of width, with fused attention (Korthikanti 2022).
_ACTIVATION_BYTES = {"bf16": 34, "fp16": 34, "fp32": 68}

Dtype = Literal["bf16", "fp16", "fp32"]


class Fit(NamedTuple):
    """How to train it."""

    gpus: int
    strategy: Literal["single", "fsdp"]
    state_bytes: int  # weights, gradients and optimizer, all together
    activation_bytes: int  # on each GPU


def fit(
    parameters: int,
    dtype: Dtype = "bf16",
    optimizer: str = "adamw",
    sequence: int = 0,
    batch: int = 0,
    *,
    gpus: Sequence[Gpu],
) -> Fit:
    """Find the fewest GPUs that hold the training of a model.

    One GPU if everything fits into 85 % of it; otherwise the state is sharded (FSDP), and each GPU holds its own
    activations. DDP is never the result: it replicates the state on every GPU.

    Args:
        parameters: their number; all are trained.
        dtype: of the computation.
        optimizer: `adamw`, `momentum` or `sgd`.
        sequence: tokens of a sample; 0: count no activations.
        batch: samples per forward pass on a GPU.
        gpus: the available ones; the smallest decides.

    Raises:
        NoGpuError: all of them together are not enough.
        ValueError: the optimizer is not known.
    """
    if optimizer not in STATE_BYTES:
        raise ValueError(f"optimizer: {optimizer!r} is unknown; use {', '.join(STATE_BYTES)}")
    if not gpus:
        raise NoGpuError("there is no GPU to fit anything on")
    state = STATE_BYTES[optimizer] * parameters
    activations = activation_bytes(parameters, dtype, sequence * batch)
    room = math.floor(USABLE * min(gpu.memory_total for gpu in gpus)) - activations
    if room <= 0:
        raise NoGpuError(
            f"activations of {batch} samples of {sequence} tokens take {activations / 2**30:.1f} GiB on each GPU, more "
            "than 85 % of one; lower batch or sequence"
        )
    if state <= room:
        return Fit(1, "single", state, activations)
    needed = math.ceil(state / room)
    if needed > len(gpus):
        size = min(gpu.memory_total for gpu in gpus) / 2**30
        raise NoGpuError(
            f"{parameters:,} parameters with {optimizer} need {needed} GPUs with {size:.0f} GiB, but there are "
            f"{len(gpus)}; use more or larger ones"
        )
    return Fit(needed, "fsdp", state, activations)


def activation_bytes(parameters: int, dtype: Dtype, tokens: int) -> int:
    """Estimate the activations that a transformer of usual shape stores for its backward pass."""
    layers = (parameters / (12 * _WIDTH_OF_LAYERS**2)) ** (1 / 3)
    return math.ceil(_ACTIVATION_BYTES[dtype] * layers * _WIDTH_OF_LAYERS * layers * tokens)
