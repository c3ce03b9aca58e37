"""Copies of a gymnasium environment: in this process, or spread over worker processes with the same results."""

import ctypes
import os
import signal
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from torchyard_trainers.core.exits import ConfigError, TrainerError
from torchyard_trainers.rl.outside import blamed

RETURNS = (
    "correct it: reset(seed=...) returns (observation, info), step(action) (observation, reward, terminated, "
    "truncated, info), and observations are what observation_space says"
)
_PR_SET_PDEATHSIG = 1
_ENDED = 5.0  # seconds that a process has to end after it was killed


class Stepped(NamedTuple):
    """The outcome of a step of n copies, before any reset."""

    seen: NDArray[Any]  # [n, D]
    reward: NDArray[np.float64]  # [n]
    terminated: NDArray[np.bool_]  # [n]
    truncated: NDArray[np.bool_]  # [n]


class Copies(Protocol):
    """n copies of an environment. Actions are as the environment takes them."""

    count: int

    def step(self, actions: NDArray[Any]) -> Stepped:
        """Step all copies by actions [n, ...]."""

    def reset(self, seeds: NDArray[np.int64], mask: NDArray[np.bool_]) -> NDArray[Any]:
        """Reset the copies of `mask` [n] with their seeds [n]; return what all show, [n, D]."""

    def replay(self, episodes: Sequence[NDArray[Any] | None]) -> list[tuple[NDArray[Any] | None, float]]:
        """Play the actions of episodes that have just begun; None: not this copy.

        Return what each copy shows then (None: nothing was played) and its return.
        """

    def close(self) -> None:
        """End what belongs to the copies."""


class Reader(NamedTuple):
    """Reads observations as vectors.

    Attributes:
        at: the field and its value, which an error begins with.
        observed: numbers of an observation.
        dtype: of the vectors.
    """

    at: str
    observed: int
    dtype: type[np.float32] | type[np.uint8]

    def calls(self, call: str) -> AbstractContextManager[None]:
        """Return a context in which an error of the environment names the call."""
        return blamed(self.at, call, RETURNS)

    def flat(self, seen: Any, *shape: int) -> NDArray[Any]:
        """Return observations as vectors, [*shape, D]; never a view of what an environment holds.

        Raises:
            ConfigError: they are no numbers, not finite, or of another size than the space.
        """
        with self.calls("reading an observation as numbers"):
            found = np.array(seen, dtype=self.dtype)
        if found.size != int(np.prod(shape)) * self.observed:
            raise ConfigError(
                f"{self.at} returned an observation of shape {list(found.shape[len(shape) :])}, but its "
                f"observation_space has {self.observed} numbers; return what the space says"
            )
        self.check_finite("an observation", found)
        return found.reshape(*shape, self.observed)

    def check_finite(self, what: str, found: NDArray[Any]) -> None:
        """Check that numbers are finite.

        Raises:
            ConfigError: one is not.
        """
        if not np.isfinite(found).all():
            bad = found[~np.isfinite(found)].flat[0]
            raise ConfigError(f"{self.at} returned {what} with {bad}, from which nothing can be learned; correct it")


class OwnCopies:
    """Copies in this process."""

    def __init__(self, make: Callable[[], Any], count: int, reader: Reader) -> None:
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        self.count, self._reader = count, reader
        self._seen = np.zeros((count, reader.observed), reader.dtype)
        with reader.calls("making another copy"):
            self._vector: Any = SyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.DISABLED)

    def step(self, actions: NDArray[Any]) -> Stepped:
        """See `Copies`."""
        with self._reader.calls("step(action)"):
            seen, reward, terminated, truncated, _ = self._vector.step(actions)
        self._reader.check_finite("a reward", reward)
        self._seen = self._reader.flat(seen, self.count)
        return Stepped(self._seen, reward, terminated, truncated)

    def reset(self, seeds: NDArray[np.int64], mask: NDArray[np.bool_]) -> NDArray[Any]:
        """See `Copies`."""
        if mask.any():
            with self._reader.calls("reset(seed=...)"):
                seen, _ = self._vector.reset(seed=seeds.tolist(), options={"reset_mask": mask})
            self._seen = self._reader.flat(seen, self.count)
        return self._seen.copy()

    def replay(self, episodes: Sequence[NDArray[Any] | None]) -> list[tuple[NDArray[Any] | None, float]]:
        """See `Copies`."""
        return [self._replayed(row, actions) for row, actions in enumerate(episodes)]

    def _replayed(self, row: int, actions: NDArray[Any] | None) -> tuple[NDArray[Any] | None, float]:
        seen, total = None, 0.0
        for action in () if actions is None else actions:
            with self._reader.calls("step(action)"):
                last, reward = self._vector.envs[row].step(action)[:2]
            seen = self._reader.flat(last)
            total += reward
        return seen, total

    def close(self) -> None:
        """See `Copies`."""
        with suppress(Exception):  # what a user's environment raises when it ends is of no use
            self._vector.close()


class WorkerCopies:
    """Copies in worker processes, in order: each has as many as the others, or one more.

    They are forked, so that any environment can be made there. The kernel ends them with the trainer.
    """

    def __init__(self, make: Callable[[], Any], count: int, reader: Reader, workers: int) -> None:
        """Start the processes.

        Args:
            make: makes a copy.
            count: of copies.
            reader: of their observations.
            workers: processes, at most one for each copy.
        """
        self.count, self._reader = count, reader
        sizes = [len(part) for part in np.array_split(np.arange(count), min(workers, count))]
        self._bounds = np.cumsum([0, *sizes])
        self._workers: list[ForkProcess] = []
        self._channels: list[Connection] = []
        context = get_context("fork")
        for size in sizes:
            channel, far = context.Pipe()
            work = context.Process(
                target=_serve,
                args=(lambda size=size: OwnCopies(make, size, reader), far, [*self._channels, channel], os.getpid()),
                daemon=True,
                name="environments",
            )
            work.start()
            far.close()
            self._workers.append(work)
            self._channels.append(channel)
        self._finalizer = weakref.finalize(self, _end, self._workers, self._channels)
        self._gather([None] * len(sizes))  # each reports that its copies are made

    def step(self, actions: NDArray[Any]) -> Stepped:
        """See `Copies`."""
        parts = self._all("step", [(actions[rows],) for rows in self._slices()])
        return Stepped(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def reset(self, seeds: NDArray[np.int64], mask: NDArray[np.bool_]) -> NDArray[Any]:
        """See `Copies`."""
        return np.concatenate(self._all("reset", [(seeds[rows], mask[rows]) for rows in self._slices()]))

    def replay(self, episodes: Sequence[NDArray[Any] | None]) -> list[tuple[NDArray[Any] | None, float]]:
        """See `Copies`."""
        return [each for part in self._all("replay", [(episodes[rows],) for rows in self._slices()]) for each in part]

    def close(self) -> None:
        """See `Copies`."""
        self._finalizer()

    def _slices(self) -> list[slice]:
        return [slice(first, last) for first, last in zip(self._bounds, self._bounds[1:], strict=False)]

    def _all(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Have all workers do the same at once; return what each returns."""
        return self._gather([(name, each) for each in arguments])

    def _gather(self, requests: Sequence[tuple[str, tuple[Any, ...]] | None]) -> list[Any]:
        answers = []
        try:
            for channel, request in zip(self._channels, requests, strict=True):
                if request is not None:
                    channel.send(request)
            answers = [channel.recv() for channel in self._channels]
        except (EOFError, OSError) as error:
            lost = next((each for each in self._workers if each.exitcode is not None), None)
            why = "" if lost is None else f" with exit code {lost.exitcode}"
            raise TrainerError(
                f"{self._reader.at}: a process of environments ended{why}; if it was killed for memory, lower "
                "trainer.params.environments or trainer.params.environmentWorkers"
            ) from error
        for fault, _ in answers:
            if fault is not None:
                raise fault
        return [answer for _, answer in answers]


def _serve(
    open_copies: Callable[[], OwnCopies], channel: Connection, others: Sequence[Connection], parent: int
) -> None:
    """Play copies as the trainer asks for it, until it closes the channel."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it ended before the kernel was asked
    for number in (signal.SIGTERM, signal.SIGINT):  # a request to save and stop goes to the whole process group
        signal.signal(number, signal.SIG_IGN)
    for each in others:
        each.close()
    torch.set_num_threads(1)
    copies: OwnCopies | None = None
    request: tuple[str, tuple[Any, ...]] | None = None
    with suppress(EOFError, OSError):
        while True:
            try:
                if copies is None:
                    copies, found = open_copies(), None
                else:
                    assert request is not None
                    found = getattr(copies, request[0])(*request[1])
                channel.send((None, found))
            except TrainerError as error:
                channel.send((error, None))
            request = channel.recv()


def _end(workers: Sequence[ForkProcess], channels: Sequence[Connection]) -> None:
    for channel in channels:
        channel.close()
    for work in workers:
        work.kill()
        work.join(_ENDED)
