"""The states of a job, the phases of training, and what follows from each: one table for both.

Both are strings of the API (`status.state`, `status.progress.phase`). Programs may report phases of their own:
`Phase.of` returns None for them.
"""

from enum import StrEnum
from typing import Self

from msgspec import Struct


class _State(Struct, frozen=True, kw_only=True):
    value: str
    activity: str = ""
    terminal: bool = False
    active: bool = False
    ready: bool = False


class State(StrEnum):
    """Where a job is in its life.

    Attributes:
        terminal: final: the job keeps this state whatever happens.
        active: the job wants pods.
        ready: kstatus reads the job as current (condition `Ready`) unless it is stalled.
        activity: entry of `status.goodput` that time in this state counts as; empty: the phase decides.
    """

    terminal: bool
    active: bool
    ready: bool
    activity: str

    def __new__(cls, entry: _State) -> Self:
        """Create a member: its value is the string of the API."""
        state = str.__new__(cls, entry.value)
        state._value_ = entry.value
        for name in entry.__struct_fields__[1:]:
            setattr(state, name, getattr(entry, name))
        return state

    NEW = _State(value="", activity="schedule", active=True)  # before the first plan
    PENDING = _State(value="Pending", activity="schedule", active=True)
    STARTING = _State(value="Starting", activity="start", active=True)
    RUNNING = _State(value="Running", active=True, ready=True)
    RECOVERING = _State(value="Recovering", activity="recover", active=True)
    SUSPENDING = _State(value="Suspending", activity="save")
    SUSPENDED = _State(value="Suspended", activity="queue", ready=True)  # a suspended job counts as queued
    SUCCEEDED = _State(value="Succeeded", terminal=True, ready=True)
    FAILED = _State(value="Failed", terminal=True)
    TERMINATING = _State(value="Terminating")

    @property
    def at_rest(self) -> bool:
        """Whether the job has no pods and changes only if a user asks for it."""
        return self.terminal or self is State.SUSPENDED


class _Phase(Struct, frozen=True, kw_only=True):
    value: str
    activity: str = "productive"
    before_steps: bool = False
    after_step: bool = False


class Phase(StrEnum):
    """What rank 0 is doing.

    Attributes:
        before_steps: no step of this round has been made yet.
        after_step: a step has been made, in this round or before it.
        activity: entry of `status.goodput` that time in this phase counts as while the job runs.
    """

    before_steps: bool
    after_step: bool
    activity: str

    def __new__(cls, entry: _Phase) -> Self:
        """Create a member: its value is the string of the API."""
        phase = str.__new__(cls, entry.value)
        phase._value_ = entry.value
        for name in entry.__struct_fields__[1:]:
            setattr(phase, name, getattr(entry, name))
        return phase

    INIT = _Phase(value="init", activity="start", before_steps=True)
    COMPILE = _Phase(value="compile", activity="start", before_steps=True)
    RESTORE = _Phase(value="restore", activity="restore", before_steps=True)
    ROLLOUT = _Phase(value="rollout")
    STEP = _Phase(value="step")
    EVAL = _Phase(value="eval", after_step=True)
    SAVE = _Phase(value="save", activity="save", after_step=True)
    EXPORT = _Phase(value="export", activity="save", after_step=True)
    DRAIN = _Phase(value="drain", activity="save", after_step=True)

    @classmethod
    def of(cls, text: str) -> "Phase | None":
        """Return the phase with this name; None: it is a phase of the program's own."""
        found = cls._value2member_map_.get(text)
        return found if isinstance(found, Phase) else None
