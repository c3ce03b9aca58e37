"""Saves tensors to a folder and loads them; the only file that uses torch.distributed.checkpoint (DCP)."""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from torchyard_trainers.core.checkpoints.index import INDEX, UnreadableError
from torchyard_trainers.core.checkpoints.low_bits import as_held, in_full
from torchyard_trainers.core.companions import Companion
from torchyard_trainers.core.exits import CheckpointError, Exit, causes, exit_code, storage_error
from torchyard_trainers.core.optimizers import parts_of
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.world import World

AVERAGE = "average"  # the part of a checkpoint that holds the moving average of the weights


class Shards(Protocol):
    """Storage of a (nested) dict of tensors; all calls are collective, errors are raised on every rank."""

    shared: bool  # every rank sees the folder; otherwise it is rank 0's alone

    def gather(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state for `save`; call it on the training thread, since gathering shards is collective."""

    def save(self, state: dict[str, Any], folder: Path) -> None:
        """Write all tensors, durably."""

    def load(self, state: dict[str, Any], folder: Path) -> None:
        """Fill the given tensors in place, at whatever world size or sharding they were written."""

    def weights(self, folder: Path, part: str = "model") -> set[str]:
        """Return the names of the model's tensors, or of another part, in a folder."""

    def written_by(self, rank: int, folder: Path) -> list[Path]:
        """Return the files of one rank; rank 0 also answers for the index."""


def shards_for(root: Path, world: World) -> "DcpShards":
    """Return how to store in `root`, which all ranks share or which is local to each node."""
    return DcpShards(world) if world.shares(root) else LeaderShards(world)


def reader_of(root: Path, world: World) -> "DcpShards":
    """Return how to read from `root`, which may be read-only or missing: nothing is written. Collective."""
    names = world.from_leader(lambda: sorted(path.name for path in root.iterdir()) if root.is_dir() else [])
    seen = all(world.gather(all((root / name).exists() for name in names)))
    return DcpShards(world) if seen else LeaderShards(world)


class DcpShards:
    """One file per rank and an index; replicated tensors are written once."""

    shared = True

    def __init__(self, world: World) -> None:
        """Use the process group of `world`, if it has one."""
        self._world = world

    def gather(self, state: dict[str, Any]) -> dict[str, Any]:
        """See `Shards`."""
        return state

    def save(self, state: dict[str, Any], folder: Path) -> None:
        """See `Shards`."""
        from torch.distributed import checkpoint

        from torchyard_trainers.core.checkpoints.storage import SaveValues, Writer

        try:
            with _quiet():
                checkpoint.save(
                    state,
                    storage_writer=Writer(folder),
                    planner=SaveValues(),
                    process_group=self._world.group,
                    no_dist=not (self.shared and self._world.grouped),
                )
        except checkpoint.CheckpointException as error:  # a BaseException, which no guard would catch
            raise RuntimeError(f"saving {folder} failed on ranks {sorted(error.failures)}") from error

    def load(self, state: dict[str, Any], folder: Path) -> None:
        """See `Shards`."""
        from torch.distributed import checkpoint

        from torchyard_trainers.core.checkpoints.storage import LoadValues, Reader

        try:
            with _quiet():
                reader = Reader(folder)
                _ask_only_for(state, _held(_states(state), reader.names))
                checkpoint.load(
                    state,
                    storage_reader=reader,
                    planner=LoadValues(),
                    process_group=self._world.group,
                    no_dist=not (self.shared and self._world.grouped),
                )
        except (checkpoint.CheckpointException, RuntimeError, KeyError, ValueError) as error:
            refused = next((each for each in causes(error) if isinstance(each, UnreadableError)), None)
            if refused is not None:
                raise CheckpointError(f"{folder}: {refused}") from error
            if exit_code(error) is not Exit.USER_ERROR:  # a peer or the volume is gone: the checkpoint may be fine
                raise RuntimeError(f"loading {folder} failed") from error
            raise CheckpointError(f"{folder}: does not fit this model ({str(error)[-300:].strip()})") from error

    def weights(self, folder: Path, part: str = "model") -> set[str]:
        """See `Shards`."""
        from torchyard_trainers.core.checkpoints.storage import Reader

        def read() -> set[str]:
            try:
                names = Reader(folder).names
            except UnreadableError as error:
                raise CheckpointError(f"{folder}: {error}") from error
            return {name.removeprefix(f"{part}.") for name in names if name.startswith(f"{part}.")}

        return self._world.from_leader(read)

    def written_by(self, rank: int, folder: Path) -> list[Path]:
        """See `Shards`."""
        index = [folder / INDEX] if rank == 0 else []
        return index + sorted(folder.glob(f"__{rank}_*"))


class LeaderShards(DcpShards):
    """All tensors in files of rank 0, which gathers before it writes and scatters after it reads.

    For checkpoint folders that nodes do not share: shards of other nodes could not be read again. Costs
    rank 0 the memory of the whole unsharded state while it saves and restores.
    """

    shared = False

    def save(self, state: dict[str, Any], folder: Path) -> None:
        """See `Shards`."""
        self._world.from_leader(lambda: _unwrapped(super(LeaderShards, self).save, state, folder))

    def load(self, state: dict[str, Any], folder: Path) -> None:
        """See `Shards`."""
        whole = _empty(state) if self._world.is_main else {}
        self._world.from_leader(lambda: _unwrapped(super(LeaderShards, self).load, whole, folder))
        _ask_only_for(state, self._world.from_leader(lambda: set(_states(whole))))
        read = dict(_leaves(whole))
        plain = {path: value for path, value in read.items() if not isinstance(value, Tensor)}
        for path, value in self._world.from_leader(lambda: plain).items():
            _put(state, path, value)
        for path, target in _leaves(state):
            if isinstance(target, Tensor):
                self._world.scatter(target, read.get(path))

    def written_by(self, rank: int, folder: Path) -> list[Path]:
        """See `Shards`."""
        return super().written_by(rank, folder) if rank == 0 else []

    def gather(self, state: dict[str, Any]) -> dict[str, Any]:
        """Gather every tensor, one at a time; only rank 0 keeps them, in CPU memory."""
        whole: dict[str, Any] = {}
        for path, value in _leaves(state):
            if isinstance(value, Tensor):
                tensor = value.full_tensor() if isinstance(value, DTensor) else value
                if self._world.is_main:
                    _put(whole, path, tensor.detach().cpu())
            elif self._world.is_main:
                _put(whole, path, value)
        return whole


Keys = tuple[str, ...]


def _leaves(nested: Mapping[str, Any], at: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield the leaves with their keys, in the same order on every rank."""
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*at, key))
        else:
            yield (*at, key), value


def _put(nested: dict[str, Any], path: Keys, value: object) -> None:
    for key in path[:-1]:
        nested = nested.setdefault(key, {})
    nested[path[-1]] = value


def _empty(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same structure with unsharded tensors in CPU memory."""
    whole: dict[str, Any] = {}
    for path, value in _leaves(state):
        tensor = isinstance(value, Tensor)
        _put(whole, path, torch.empty(value.shape, dtype=value.dtype) if tensor else value)
    return whole


def _states(state: dict[str, Any]) -> dict[str, Any]:
    """Return the optimizer's state by the name of the parameter."""
    found: dict[str, Any] = state.get("optimizer", {}).get("state", {})
    return found


def _held(parameters: Iterable[str], names: Iterable[str]) -> set[str]:
    """Return the parameters that have a state of the optimizer in a checkpoint, by the names of its values."""
    places = {place for name in names for place in accumulate(name.split("."), "{}.{}".format)}
    return {each for each in parameters if f"optimizer.state.{each}" in places}


def _ask_only_for(state: dict[str, Any], names: Collection[str]) -> None:
    """Leave out states that a checkpoint lacks: a parameter gets its state with its first gradient."""
    states = _states(state)
    for name in [name for name in states if name not in names]:
        del states[name]


def _unwrapped(act: Callable[[dict[str, Any], Path], None], state: dict[str, Any], folder: Path) -> None:
    """Run `act` and raise a storage error unwrapped: it is sent to the other ranks, so that all retry together."""
    try:
        act(state, folder)
    except RuntimeError as error:
        refused = storage_error(error)
        if refused is None:
            raise
        raise refused from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress DCP's warning about a world of one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def capture(
    parallel: Parallel, optimizer: Optimizer, workload: dict[str, Any], average: Companion | None = None
) -> dict[str, Any]:
    """Return the training state under names that do not depend on the strategy. Collective.

    Frozen parameters that training has not changed are left out.
    """
    from torch.distributed.checkpoint.state_dict import get_state_dict

    base = parallel.frozen_base
    model_state, optimizer_state = get_state_dict(parallel.module, parts_of(optimizer))
    return {
        "model": base.limited(model_state, base.changed()),
        "optimizer": in_full(optimizer_state),
        "workload": workload,
        **({AVERAGE: average.state()} if average is not None else {}),
    }


def fill_all(
    parallel: Parallel,
    optimizer: Optimizer,
    workload: dict[str, Any],
    storage: Shards,
    folder: Path,
    *,
    average: Companion | None = None,
) -> None:
    """Load model, optimizer, workload and moving average from a checkpoint. Collective."""
    from torch.distributed.checkpoint import state_dict

    model_state, optimizer_state = state_dict.get_state_dict(parallel.module, parts_of(optimizer))
    held = storage.weights(folder)
    loaded = {
        "model": parallel.frozen_base.limited(model_state, held),
        "optimizer": in_full(optimizer_state),
        "workload": workload,
        **({AVERAGE: average.state()} if average is not None else {}),
    }
    storage.load(loaded, folder)
    loaded["optimizer"] = as_held(optimizer_state, loaded["optimizer"])
    _put_weights(parallel.module, loaded["model"])
    # Not strict: a parameter that never had a gradient has no state.
    options = state_dict.StateDictOptions(strict=False)
    state_dict.set_optimizer_state_dict(parallel.module, parts_of(optimizer), loaded["optimizer"], options=options)


def fill_weights(parallel: Parallel, storage: Shards, folder: Path) -> None:
    """Load the model from a checkpoint. Collective."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    held = storage.weights(folder)
    loaded = {"model": parallel.frozen_base.limited(get_model_state_dict(parallel.module), held)}
    storage.load(loaded, folder)
    _put_weights(parallel.module, loaded["model"])


def fill_average(average: Companion, storage: Shards, folder: Path) -> None:
    """Load the moving average from a checkpoint. Collective.

    Raises:
        CheckpointError: the checkpoint has none.
    """
    values = average.state()
    if not values.keys() <= storage.weights(folder, AVERAGE):
        raise CheckpointError(
            f"{folder}: holds no moving average of the weights, which this job asks for; leave that out, to load the "
            "weights themselves"
        )
    storage.load({AVERAGE: values}, folder)


def _put_weights(module: nn.Module, weights: dict[str, Any]) -> None:
    from torch.distributed.checkpoint import state_dict

    # Not strict: a checkpoint does not hold the frozen base; `load` has filled all names that were asked for.
    state_dict.set_model_state_dict(module, weights, options=state_dict.StateDictOptions(strict=False))
