"""A job as its backend keeps it, and what that says about it."""

from typing import Any, NamedTuple

from torchyard.api.resource import TrainingJob
from torchyard.api.states import State

Document = dict[str, Any]


class Kept(NamedTuple):
    """A job as its backend keeps it."""

    job: TrainingJob
    document: Document
    """The whole object, as `-o json` prints it."""
    controlled: bool = True
    """Whether something acts on the job: the operator, or a process of this machine."""
    detached: bool = False
    """Whether its pods live on without a process that controls them."""


class Unreadable(NamedTuple):
    """A run whose files are damaged."""

    name: str
    sentence: str


def interrupted(job: TrainingJob, controlled: bool) -> bool:
    """Whether the run should be going on but its controlling process is gone."""
    return not controlled and not job.status.state.at_rest


def is_over(job: TrainingJob) -> bool:
    """Whether nothing more will happen by itself."""
    return job.status.state.terminal or (job.status.state == State.SUSPENDED and job.spec.suspend)
