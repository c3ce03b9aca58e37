"""PyTorch's memory trackers, adapted to report the peak of a whole step and when it occurs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

# The trackers' kinds of memory, by name. A model's own buffers are few; DDP's buckets are buffers here, see `Replica`.
KINDS = {
    "parameters": ("PARAM", "SHARDED_PARAM"),
    "gradients": ("GRAD", "SHARDED_GRAD", "UNSHARDED_GRAD"),
    "optimizer": ("OPT",),
    "buffers": ("BUFFER", "UNSHARDED_PARAM", "ALL_GATHER", "REDUCE_SCATTER"),
}
# Kinds that offloading keeps in host memory; an unreduced gradient stays on the device.
OFFLOADED = frozenset({"SHARDED_PARAM", "SHARDED_GRAD", "OPT"})


def tracker_of(model: nn.Module, optimizer: Optimizer, *, sharded: bool, offloads: bool, on_gpu: bool) -> Any:
    """Return a tracker that can be reset (`forget`), knows when the peak was (`moment`) and accepts frozen networks.

    `beside` names moments outside of a step. The tracker leaves out the peaks of modules, which take
    most of its time.

    Args:
        model: `FSDPMemTracker` distinguishes kinds of memory of a sharded one.
        optimizer: of its parameters.
        sharded: whether the model is sharded.
        offloads: find the moment of most need of the device; what is offloaded is counted beside it.
        on_gpu: count what kernels of a GPU take for themselves; otherwise collectives go through gloo, which reduces
            a copy of the gradients.
    """
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = _of_the_whole(FSDPMemTracker)(model, optimizer) if sharded else _of_the_whole(MemTracker)()
    tracker.on_host = OFFLOADED if offloads else frozenset()
    tracker.on_gpu = on_gpu
    tracker.parts = set(model.modules())  # those of a frozen base count
    return tracker


@contextmanager
def tracking(tracker: Any) -> Iterator[None]:
    """Count allocations inside a `with` block, except the full tensors that DTensor creates to infer shapes.

    With fake tensors it creates them in the mode of the step itself, where the tracker cannot distinguish them.
    """
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    guard = ShardingPropagator._fake_mode_lock  # noqa: SLF001 - it is entered around just that
    ShardingPropagator._fake_mode_lock = _Pause(tracker)  # type: ignore[assignment]  # noqa: SLF001
    try:
        with tracker:
            yield
    finally:
        ShardingPropagator._fake_mode_lock = guard  # noqa: SLF001


class _Pause:
    """Stops a tracker from counting within a `with` block."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker

    def __enter__(self) -> None:
        self._tracker.paused = True

    def __exit__(self, *_: object) -> None:
        self._tracker.paused = False


def _of_the_whole(tracker: type[Any]) -> type[Any]:
    track, before_pass = attrgetter("_track_module_params_and_buffers", "_pre_fw_hook")(tracker)

    def update(self: Any, _state: object) -> None:
        for device, now in self._curr_mem_snap.items():
            size = now["Total"]
            if self.on_host:
                size -= sum(part for kind, part in now.items() if getattr(kind, "name", "") in self.on_host)
            if self._peak_mem.get(device, 0) < size:
                self._peak_mem[device] = size
                self._peak_mem_snap[device] = dict(now)
                in_pass = "backward pass" if self._mod_tracker.is_bw else "forward pass"
                self.moment = self.beside or ("update" if self._in_opt else in_pass)

    def forget(self: Any) -> None:
        self._peak_mem.clear()
        self._peak_mem_snap.clear()

    def count(self: Any, module: nn.Module, install_grad_hooks: bool = True) -> tuple[int, int]:
        learning = [each.requires_grad for each in module.parameters()]
        known = all(each.untyped_storage() in self._WINFO for each in module.parameters())
        if learning and not any(learning) and module not in self.parts and known:
            return 0, 0  # a frozen copy that is part of the workload's state is counted there
        sizes: tuple[int, int] = track(self, module, install_grad_hooks and all(learning))
        return sizes

    def begin_again(self: Any, module: nn.Module) -> None:
        """Or a second pass is refused: a rollout has one for each of its times, an evaluation for each batch."""
        if not self._mod_tracker.is_bw and module in self.memory_tracking:
            del self.memory_tracking[module]

    def enter(self: Any, module: nn.Module, inputs: Any) -> None:
        begin_again(self, module)
        before_pass(self, module, inputs)

    def enter_sharded(self: Any, module: Any, gather: Callable[..., Any]) -> Callable[..., Any]:
        gathers = attrgetter("_fsdp_state_pre_forward")(tracker)(self, module, gather)
        return lambda *inputs, **more: (begin_again(self, module), gathers(*inputs, **more))[1]

    replaced: dict[str, Any] = {"_update_peak_stats": update, "forget": forget, "paused": False, "beside": ""}
    replaced |= {"_track_module_params_and_buffers": count, "_pre_fw_hook": enter}
    replaced |= {"_fsdp_state_pre_forward": enter_sharded, "_track": _tracking(tracker)}
    # Nothing is compiled here, and to tell the compiler so at each operation takes longer than to count it.
    replaced |= {"_should_skip_dynamo": classmethod(lambda _: False), "__torch_dispatch__": _seen_by(tracker)}
    return type(tracker.__name__, (tracker,), replaced)


def _tracking(tracker: type[Any]) -> Callable[..., None]:
    """Return what a tracker does with each result of an operation; most are views of memory that is known."""
    track = attrgetter("_track")(tracker)

    def found(self: Any, kind: object, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        known = self._WINFO.get(storage)
        if known is None or known[0].size != storage.size() or is_traceable_wrapper_subclass(tensor):
            track(self, kind, tensor)

    return found


def _seen_by(tracker: type[Any]) -> Callable[..., Any]:
    """Return what a tracker does at each operation, with the pauses and the copies of `tracker_of`."""
    dispatch, reduce_scatter = unwrap(tracker.__torch_dispatch__), torch.ops.c10d._reduce_scatter_base_.default
    softmax_backward = torch.ops.aten._softmax_backward_data.default  # noqa: SLF001 - an operator

    def act(self: Any, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.paused:
            return operation(*args, **(kwargs or {}))
        copied = None
        # Gradients, or on a GPU the product of a softmax's gradient and its result.
        if operation is (softmax_backward if self.on_gpu else reduce_scatter):
            with self:
                copied = args[1].clone()
        result = dispatch(self, operation, types, args, kwargs)
        del copied
        return result

    return act
