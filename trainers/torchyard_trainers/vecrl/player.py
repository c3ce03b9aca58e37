"""How a rollout is run: as it is written, compiled, or compiled and replayed as one CUDA graph.

A rollout is many small kernels one after the other. On a CPU their calls cost more than their work, on a GPU their
launches do. With `parallelism.compile` one step of policy and environment becomes a few fused kernels, and on a GPU all
steps of a rollout are launched at once.
"""

from collections.abc import Callable

import torch

from torchyard_trainers.core.parallel import compile_blocks
from torchyard_trainers.vecrl.environment import Environment, State
from torchyard_trainers.vecrl.policy import Policy
from torchyard_trainers.vecrl.rollout import Luck, Path, Tick, act, tick

Play = Callable[[State, Luck], Path]


def player(policy: Policy, environment: Environment, *, compiled: bool, device: torch.device) -> Play:
    """Give the way to play rollouts under a policy whose weights change in place.

    Raises:
        ConfigError: compilation is asked for and there is no compiler.
    """
    step: Callable[..., Tick] = tick
    if compiled:
        compile_blocks([])  # says so if there is no compiler
        step = torch.compile(tick, dynamic=False)

    def play(state: State, luck: Luck) -> Path:
        return act(policy, environment, state, luck, step=step)

    return Graphed(play) if compiled and device.type == "cuda" else play


class Graphed:
    """A rollout captured once and replayed: inputs are copied into the graph's own tensors."""

    WARM_UP_RUNS = 3

    def __init__(self, play: Play) -> None:
        self._play = play
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, state: State, luck: Luck) -> Path:
        """Play; what is returned stays as it is until the next call, the state for good."""
        if self._graph is None:
            self._capture(state, luck)
        assert self._graph is not None
        for name, tensor in state.items():
            self._state[name].copy_(tensor)
        for own, given in zip(self._luck, luck, strict=True):
            own.copy_(given)
        self._graph.replay()
        return self._path._replace(state={name: tensor.clone() for name, tensor in self._path.state.items()})

    def _capture(self, state: State, luck: Luck) -> None:
        self._state = {name: tensor.clone() for name, tensor in state.items()}
        self._luck = Luck(*(tensor.clone() for tensor in luck))
        # Kernels are compiled and libraries open their handles outside of the capture, on a stream beside.
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(self.WARM_UP_RUNS):
                self._play(self._state, self._luck)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._path = self._play(self._state, self._luck)
        self._graph = graph
