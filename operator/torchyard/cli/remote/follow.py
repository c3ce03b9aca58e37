"""A job of a cluster in this terminal: the live view of `torchyard run`, fed by the API server."""

import contextlib
import time

from torchyard.api.resource import TrainingJob
from torchyard.api.states import State
from torchyard.cli.curve import History
from torchyard.cli.drawing import drawn
from torchyard.cli.ending import exit_code, last_lines
from torchyard.cli.errors import FAILED
from torchyard.cli.foreground import KEPT_EVENTS
from torchyard.cli.output import say
from torchyard.cli.picture import Picture, learned, record
from torchyard.cli.remote import jobs
from torchyard.cli.remote.session import Remote
from torchyard.cli.remote.watch import Away, states
from torchyard.cli.words import addressed, clean
from torchyard.cluster.local.run import Event
from torchyard.engine.ports import Unavailable

LOOK_SECONDS = 1.0


async def follow(remote: Remote, name: str, uid: str = "") -> int:
    """Show a job until it is over; returns the exit code that says how it ended.

    The terminal only looks: after Ctrl-C the job still runs.
    """
    following = _Following(remote, name, uid)
    async with drawn(following.picture):
        await following.until_over()
    for line in ending(following.job, remote, gone=following.gone):
        say(line)
    return exit_code(following.job) if following.job is not None and not following.gone else FAILED


def is_over(job: TrainingJob) -> bool:
    """Whether nothing more will happen by itself."""
    return job.status.state.terminal or (job.status.state == State.SUSPENDED and job.spec.suspend)


def ending(job: TrainingJob | None, remote: Remote, *, gone: bool) -> list[str]:
    """Lines for stderr after the view is closed."""
    if job is None or gone:
        return [f"{job.metadata.name if job else 'the job'} was deleted"]
    name, state, flags = job.metadata.name, job.status.state, remote.flags
    if state == State.SUCCEEDED:
        return [learned(job), f"next: torchyard fetch {name}{flags}"]
    if state == State.FAILED:
        more = f"more: `torchyard explain {name}{flags}`, `torchyard logs {name}{flags}`"
        return [f"{name} failed: {addressed(clean(job.status.message), name, remote.flags)}", *last_lines(job), more]
    return [f"{name} is suspended; `torchyard resume {name}{flags}` goes on from its newest checkpoint"]


class _Following:
    """What is known of the job while it is watched from here."""

    def __init__(self, remote: Remote, name: str, uid: str) -> None:
        self.remote, self.name, self.uid = remote, name, uid
        self.job: TrainingJob | None = None
        self.gone = False
        self.events: list[Event] = []
        self.losses = History()
        self.notice = ""

    async def until_over(self) -> None:
        """Follow every change; an API server that is away for a while is waited for."""
        async for seen in states(self.remote, self.name, self.uid):
            if seen is None:
                self.gone = True
                return
            if isinstance(seen, Away):
                self.notice = f"the API server does not answer, the job goes on: {seen.why}"
                continue
            await self._take(seen)
            if is_over(seen):
                return

    async def _take(self, seen: TrainingJob) -> None:
        if self.job is None or seen.status != self.job.status:
            with contextlib.suppress(Unavailable):  # the next state brings them
                self.events = (await jobs.events(self.remote, seen))[-KEPT_EVENTS:]
        self.job, self.notice = seen, ""
        record(self.losses, seen)

    def picture(self) -> Picture | None:
        """The job now; None before anything is known of it."""
        if self.job is None:
            return None
        return Picture(self.job, time.time(), (), self.losses.points, self.events, self.notice)
