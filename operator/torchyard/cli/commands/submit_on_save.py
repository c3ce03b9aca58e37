"""`torchyard submit --code FOLDER --replace --watch`: each edit of the code is the next round of the job."""

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, TextIO

from torchyard.cli.commands.follow import follow
from torchyard.cli.output import say
from torchyard.client.bundle.attach import digest_now, packed
from torchyard.client.bundle.edits import Edits
from torchyard.client.errors import TorchYardError
from torchyard.client.jobs import creatable

if TYPE_CHECKING:
    from torchyard.api.resource import TrainingJob
    from torchyard.client.backend import Kept
    from torchyard.client.cluster import ClusterBackend
    from torchyard.client.start import RequestedJob


async def follow_edits(
    backend: "ClusterBackend", wanted: "RequestedJob", job: "TrainingJob", kept: "Kept", output: TextIO | None
) -> int:
    """Show a job, and replace it by itself with the code as it is then, each time that is edited; until Ctrl-C.

    Args:
        backend: the cluster.
        wanted: the job as it was requested, with the folder of its code.
        job: as it was submitted, with the digest of the code.
        kept: the same, as the cluster has it.
        output: gets what the program writes; None: nothing.
    """
    code = wanted.job.spec.code
    assert code is not None, "packed"
    assert code.path is not None, "packed"
    name = job.metadata.name
    shown = _show(backend, kept, output)
    try:
        while True:
            assert job.spec.code is not None
            now = partial(digest_now, wanted.job, wanted.folder / code.path, "cluster")
            await Edits(wanted.folder / code.path, str(job.spec.code.digest), say, now).wait()
            try:
                sent = packed(_named(wanted.job, name), wanted.folder, say)
                assert sent is not None
                changed = await backend.replace(creatable(sent.job, wanted.source, None), sent.job, sent)
            except TorchYardError as error:  # the next edit may be better, or the cluster answer again
                say(f"torchyard: {error}")
                continue
            job = sent.job
            if changed.job.metadata.uid != kept.job.metadata.uid or shown.done():
                await _ended(shown)
                kept, shown = changed, _show(backend, changed, output)
    finally:
        await _ended(shown)


def _named(job: "TrainingJob", name: str) -> "TrainingJob":
    from msgspec.structs import replace

    return replace(job, metadata=replace(job.metadata, name=name))


def _show(backend: "ClusterBackend", kept: "Kept", output: TextIO | None) -> "asyncio.Task[None]":
    async def shown() -> None:
        await follow(backend, kept.job.metadata.name, kept.job.metadata.uid, output=output)
        say("waits for an edit of the code; Ctrl-C ends this command")

    return asyncio.create_task(shown())


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
