"""A command's question to a backend: this machine, or a cluster."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from torchyard.cli.output import say
from torchyard.client.backend import Backend, Place, opened, place_of

T = TypeVar("T")


def ask(
    work: Callable[[Backend], Awaitable[T]],
    name: str | None,
    context: str | None,
    namespace: str | None,
    *,
    waits: bool = False,
) -> T:
    """Do `work` with the backend of a job, and return its result.

    Args:
        work: gets the backend.
        name: of the job, None: no single one is meant.
        context: what --context says.
        namespace: what -n says.
        waits: whether the work takes its time on this machine too, following a run for instance.

    Raises:
        TorchYardError: there is no cluster, it does not answer, or it refuses.
    """
    return ask_at(place_of(name, context, namespace), work, waits=waits)


def ask_at(place: Place, work: Callable[[Backend], Awaitable[T]], *, waits: bool = False) -> T:
    """Do `work` with the backend of a place. Raises what `ask` does."""

    async def connected() -> T:
        async with opened(place, say) as backend:
            return await work(backend)

    if place.kind == "local" and not waits:
        # Files are read at once: nothing is waited for, and an event loop would cost more than the answer.
        try:
            connected().send(None)
        except StopIteration as done:
            answer: T = done.value
            return answer
        raise AssertionError("a question to this machine waits; ask it with waits=True")
    import asyncio

    return asyncio.run(connected())
