"""Frozen linear layers of 4 bits under adapters (QLoRA, Dettmers et al. 2023), by bitsandbytes.

A weight is one of the 16 numbers of NF4, times the largest absolute value of its block of 64 in a row. These are the
values that transformers computes with `BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")`. All parts are
parameters of bytes with a row for each output, so that ranks hold rows of them as of any other matrix.
"""

import logging
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.named_tensors import whole

# peft imports the package wherever it is installed, and it reports kernels that it lacks, which are not used here.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

BLOCK = 64  # weights with one scale; a row has a whole number of blocks
KIND = "nf4"


class QuantizedLinear(nn.Linear):
    """A linear layer whose weights are read by `put` and never trained.

    Attributes:
        weight: [outputs, inputs / 2] bytes, two weights in each.
        scales: [outputs, inputs / 16] bytes, of one float32 for a block.
    """

    def __init__(self, plain: nn.Linear) -> None:
        """Take the sizes and the bias of a frozen layer for which `is_suitable` is true."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        device, rows = plain.weight.device, plain.out_features
        for name, width in (("weight", self.in_features // 2), ("scales", 4 * self.in_features // BLOCK)):
            empty = torch.empty(rows, width, dtype=torch.uint8, device=device)
            self.register_parameter(name, nn.Parameter(empty, requires_grad=False))
        self.register_parameter("bias", plain.bias)

    @property
    def shape(self) -> list[int]:
        """The shape of the matrix."""
        return [self.out_features, self.in_features]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as `nn.Linear` names it
        """Return the product [..., outputs] in the type that computes."""
        product: Tensor = _Product.apply(input, self.weight, self.scales)
        return product if self.bias is None else product + self.bias.to(product.dtype)

    def put(self, weight: Tensor, scales: Tensor, rows: Tensor) -> None:
        """Quantize rows [n, inputs] into this process's rows of `weight` and `scales`."""
        from bitsandbytes.functional import quantize_4bit

        packed, state = quantize_4bit(rows.to(weight.device, torch.float32), blocksize=BLOCK, quant_type=KIND)
        weight.copy_(packed.view(weight.shape))
        scales.copy_(state.absmax.view(torch.uint8).view(scales.shape))

    def dequantized(self) -> Tensor:
        """Return the whole matrix [outputs, inputs] in float32. Collective if it is sharded."""
        return _dequantized(whole(self.weight.detach()), whole(self.scales.detach()), torch.float32)


class _Product(torch.autograd.Function):
    """Keeps bytes for the backward pass, not the matrix that they stand for."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        kind = states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
        ctx.save_for_backward(weight, scales)
        ctx.dtype = states.dtype
        return F.linear(states.to(dtype), _dequantized(weight, scales, dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        weight, scales = ctx.saved_tensors
        return (gradient @ _dequantized(weight, scales, gradient.dtype)).to(ctx.dtype), None, None


def _dequantized(weight: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    from bitsandbytes.functional import QuantState, dequantize_4bit, get_4bit_type

    shape = torch.Size((len(weight), 2 * weight.shape[1]))
    state = QuantState(
        absmax=scales.reshape(-1).view(torch.float32),
        shape=shape,
        code=get_4bit_type(KIND, device=weight.device),
        blocksize=BLOCK,
        quant_type=KIND,
        dtype=dtype,
    )
    matrix: Tensor = dequantize_4bit(weight.reshape(-1, 1), state)
    return matrix


def check_installed(field: str) -> None:
    """Check that bitsandbytes is installed.

    Args:
        field: of the job that needs it, with its value.

    Raises:
        ConfigError: it is not.
    """
    if find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"{field} needs bitsandbytes, which is not installed here; install torchyard[qlora] or remove the field"
        )


def is_suitable(layer: nn.Module) -> bool:
    """Return whether a layer is a frozen matrix whose rows have whole blocks."""
    return type(layer) is nn.Linear and not layer.weight.requires_grad and layer.in_features % BLOCK == 0


def quantize_frozen(language: Any) -> int:
    """Replace the suitable frozen layers of a model with adapters, but for its output layer; return their number."""
    head = language.get_output_embeddings()
    names = [name for name, each in language.named_modules() if is_suitable(each) and each is not head]
    for name in names:
        parent, _, own = name.rpartition(".")
        setattr(language.get_submodule(parent), own, QuantizedLinear(language.get_submodule(name)))
    return len(names)


def quantized_in(model: nn.Module) -> dict[int, QuantizedLinear]:
    """Return the quantized layers of a model by the id of their weight."""
    return {id(each.weight): each for each in model.modules() if isinstance(each, QuantizedLinear)}
