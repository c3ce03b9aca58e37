"""Names of jobs and sweeps: those of this machine, and those of the cluster that a command line is about."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torchyard.client.errors import TorchYardError
from torchyard.client.location import is_configured, run_names

if TYPE_CHECKING:
    from torchyard.client.remote.session import Remote

SECONDS = 2.0
"""A person who presses Tab does not wait longer; then there are no candidates."""


class Where(NamedTuple):
    """Where the names of a command line are looked for."""

    here: bool
    cluster: bool
    context: str | None
    namespace: str | None

    @classmethod
    def of(cls, words: Sequence[str], *, can_be_on_cluster: bool, on_cluster: bool) -> "Where":
        """Return the location by the options among `words`.

        Args:
            words: of the command line.
            can_be_on_cluster: whether the command has these options.
            on_cluster: whether names mean the cluster without them.
        """
        context, namespace = _value(words, "--context"), _value(words, "--namespace", "-n")
        named = on_cluster or context is not None or namespace is not None
        cluster = can_be_on_cluster and (named or (not run_names() and is_configured()))
        return cls(here=not named, cluster=cluster, context=context, namespace=namespace)


def job_names(where: Where) -> list[str]:
    """Return the names of jobs; those of a cluster that does not answer in time are left out."""
    return [*(run_names() if where.here else ()), *(_of_cluster(where, _jobs) if where.cluster else ())]


def sweep_names(where: Where) -> list[str]:
    """Return the names of sweeps, as `job_names` does."""
    from torchyard.local.sweeps import sweep_names

    return [*(sweep_names() if where.here else ()), *(_of_cluster(where, _sweeps) if where.cluster else ())]


async def _jobs(remote: "Remote") -> list[str]:
    from torchyard.client.remote.jobs import jobs_path, names_at

    return await names_at(remote, jobs_path(remote.namespace))


async def _sweeps(remote: "Remote") -> list[str]:
    from torchyard.client.remote.jobs import names_at
    from torchyard.client.remote.sweeps import sweeps_path

    return await names_at(remote, sweeps_path(remote))


def _of_cluster(where: Where, work: "Callable[[Remote], Awaitable[list[str]]]") -> list[str]:
    async def names() -> list[str]:
        from torchyard.client.remote.session import connection

        async with asyncio.timeout(SECONDS), connection(where.context, where.namespace) as remote:
            return await work(remote)

    try:
        return asyncio.run(names())
    except (TorchYardError, TimeoutError, ModuleNotFoundError):  # a message would end up in the command line
        return []


def _value(words: Sequence[str], *options: str) -> str | None:
    """Return the value of an option among words; None: it is not there."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in options:
            return value if equals else next(iter(words[index + 1 :]), None)
    return None
