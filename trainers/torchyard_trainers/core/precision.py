"""Mixed precision as three functions: where to autocast, how FSDP casts, and fp16's loss scaler."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from torchyard_trainers.core import gradients
from torchyard_trainers.core.exits import ConfigError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolved(name: str, *, gpu: bool, bf16: bool) -> str:
    """Resolve a precision: `auto` is bf16 on a GPU that supports it, else fp32.

    Raises:
        ConfigError: the GPU does not support bf16.
    """
    if name == "auto":
        return "bf16" if gpu and bf16 else "fp32"
    if name == "bf16" and gpu and not bf16:
        raise ConfigError("parallelism.precision: bf16, but this GPU does not support it; use fp16 or fp32")
    return name


class Precision:
    """The precision of a run. Master weights, gradient reduction, losses and checkpoints are always fp32."""

    def __init__(self, name: str, device: torch.device, *, sharded: bool) -> None:
        """Resolve `auto` (bf16 where the GPU has it, else fp32); `sharded` parameters are cast when gathered."""
        gpu = device.type == "cuda"
        name = resolved(name, gpu=gpu, bf16=gpu and torch.cuda.is_bf16_supported(including_emulation=False))
        self.name = name
        self.dtype = DTYPES[name]
        self._device = device
        self._autocasts = name != "fp32" and not sharded
        self._scaler = GradScaler(device.type, enabled=name == "fp16")

    def forward(self) -> AbstractContextManager[object]:
        """Return the context of every forward pass."""
        return self.casting() if self._autocasts else nullcontext()

    def casting(self) -> AbstractContextManager[object]:
        """Return a context in which layers accept inputs of any type, also with weights gathered in half precision."""
        return torch.autocast(self._device.type, self.dtype, enabled=self.name != "fp32")

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a (scaled) loss."""
        self._scaler.scale(loss).backward()

    def clip(self, parameters: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer, max_norm: float) -> Tensor:
        """Clip the unscaled gradients to a global norm; return the norm before clipping, equal on every rank."""
        self._scaler.unscale_(optimizer)
        return gradients.clip(parameters, max_norm).to(self._device)  # gradients may be offloaded

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the parameters; fp16 skips a step whose gradients overflowed and lowers the loss scale."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def skip(self) -> None:
        """Discard the gradients of a skipped step; fp16 lowers the loss scale if they overflowed."""
        self._scaler.update()

    @property
    def overflows(self) -> bool:
        """Whether a non-finite gradient may be an overflow of fp16: above scale 1, a lower scale may help."""
        return self._scaler.is_enabled() and self._scaler.get_scale() > 1.0

    def state(self) -> dict[str, float]:
        """Return the state of the loss scaler, exact in JSON."""
        return self._scaler.state_dict()

    def load_state(self, state: dict[str, float]) -> None:
        """Restore the loss scale of a checkpoint; ignore that of another precision."""
        if state and self._scaler.is_enabled():
            self._scaler.load_state_dict(state)
