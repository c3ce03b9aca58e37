"""CUDA graphs: many small kernels, recorded once and launched together.

A GPU finishes a small kernel before the host has launched the next one. A graph reads and writes memory of a private
pool at fixed addresses, so inputs are copied in, and outputs are valid until the next call.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from torchyard_trainers.core.flag import Flag
from torchyard_trainers.core.metrics.curves import say

WARM_UP_RUNS = 3
MOST_RECORDINGS = 6  # of one function; each keeps the memory of its shapes
P = ParamSpec("P")
T = TypeVar("T")
_EAGER = Flag()


class _Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]  # where it reads
    found: Any  # where it writes

    def replay(self, given: list[Tensor]) -> Any:
        torch._foreach_copy_(self.inputs, given)
        self.graph.replay()
        return self.found


class _Recorder:
    """The recordings of one function, one for each set of shapes."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act
        self._recordings: dict[Hashable, _Recording] = {}
        self._most = MOST_RECORDINGS

    def run(self, inputs: tuple[Any, ...]) -> Any:
        """Replay the graph of this input shape, recording it first if needed; return None if no more graphs fit."""
        leaves, layout = tree_flatten(inputs)
        form = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        key = form, torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        if key not in self._recordings:
            if len(self._recordings) >= self._most:
                return None
            try:
                own = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
                graph, found = _capture(self._act, tree_unflatten(own, layout))
            except torch.OutOfMemoryError:
                # A graph keeps its memory; without one, the same work may fit into what other work has left.
                self._most = len(self._recordings)
                say("no GPU memory is left for a CUDA graph: this work is launched kernel by kernel, which is slower")
                return None
            self._recordings[key] = _Recording(graph, _tensors(own), found)
        return self._recordings[key].replay(_tensors(leaves))


def _capture(act: Callable[..., T], inputs: tuple[Any, ...]) -> tuple[torch.cuda.CUDAGraph, T]:
    """Record a run of `act` on static inputs; return the graph and its outputs."""
    # Casts that autocast caches from an earlier layer no longer exist during a replay.
    uncached = torch.autocast(
        "cuda", torch.get_autocast_dtype("cuda"), enabled=torch.is_autocast_enabled("cuda"), cache_enabled=False
    )
    with uncached:
        # Kernels are compiled and libraries open their handles before, on a stream beside.
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UP_RUNS):
                act(*inputs)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on with their own: NCCL's watchdog, a save.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            found = act(*inputs)
    return graph, found


class Graphed(Generic[P, T]):
    """A function of tensors, without gradient, as a graph if it is `wanted`; on a CPU the function itself.

    Inputs and outputs are nested tuples, lists and dicts of tensors. Modules that it reads must keep their memory.
    """

    def __init__(self, act: Callable[P, T], *, wanted: bool) -> None:
        self._act = act
        self._recorder = _Recorder(act) if wanted else None

    def __call__(self, *inputs: P.args, **named: P.kwargs) -> T:
        """Return what the function gives; a graph writes it in the same place at the next call."""
        assert not named, "inputs of a graph go by their place"
        found = self._recorder.run(inputs) if self._recorder and _records(inputs) else None
        return self._act(*inputs, **named) if found is None else found


class GraphedLoss:
    """A loss and its gradient as one graph: `act` gives a scalar and a nested tuple or dict of tensors beside it.

    The gradient is computed with the loss, and the backward pass multiplies it by what it is given. So it serves one
    process whose parameters keep their memory; half precision that scales its loss would lose what it scales for. No
    loss of an earlier call may be referenced when new shapes are recorded.
    """

    @staticmethod
    def serves(strategy: str, precision: str) -> bool:
        """Return whether jobs of this strategy and precision can have their loss as a graph."""
        return strategy == "single" and precision != "fp16"

    def __init__(self, act: Callable[..., tuple[Tensor, Any]], parameters: Sequence[Tensor]) -> None:
        self._act, self._parameters = act, [each for each in parameters if each.requires_grad]
        self._recorder = _Recorder(self._with_gradient)

    def __call__(self, *inputs: Any) -> tuple[Tensor, Any]:
        """Return the loss, with its gradient, and what is beside it; as with `Graphed`, until the next call."""
        found = self._recorder.run(inputs) if _records(inputs) else None
        if found is None:
            return self._act(*inputs)
        loss, beside, gradients = found
        return _Known.apply(loss, gradients, *self._parameters), beside

    def _with_gradient(self, *inputs: Any) -> tuple[Tensor, Any, list[Tensor | None]]:
        with torch.enable_grad():
            loss, beside = self._act(*inputs)
            with torch.autocast(loss.device.type, enabled=False):  # types are those of the forward pass
                gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        return loss.detach(), beside, list(gradients)


class _Known(torch.autograd.Function):
    """A number whose gradient is known."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor | None], *_parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        scaled = iter(torch._foreach_mul([each for each in ctx.gradients if each is not None], scale))  # noqa: SLF001
        return None, None, *(None if each is None else next(scaled) for each in ctx.gradients)


@contextmanager
def eager_mode(*, compiled: bool) -> Iterator[None]:
    """Run all code eagerly inside a `with` block, for passes that run once or are counted.

    `compiled`: whether there may be compiled code; checking for it takes seconds.
    """
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with stance, _EAGER.set():
        yield


def _records(inputs: Any) -> bool:
    """Whether work on these tensors is recorded: they are on a GPU and are not fake."""
    tensors = _tensors(tree_flatten(inputs)[0])
    return not _EAGER.on and all(each.is_cuda and not isinstance(each, FakeTensor) for each in tensors)


def _tensors(leaves: Iterable[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
