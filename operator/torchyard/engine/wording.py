"""Sentences for the user. Reasons come from the catalogue; a cluster's own codes are quoted, not lost."""

from msgspec.structs import replace

from torchyard.api import catalogue
from torchyard.api.status import State, TrainingJobStatus

MAX_MESSAGE = 1024


def say(code: str, evidence: str = "", *, advice: str = "") -> str:
    """Return a sentence of at most 1,024 characters: cause (evidence); next step, or `advice` in its place."""
    if code in catalogue.CATALOGUE:
        return catalogue.say(code, evidence, advice=advice)[:MAX_MESSAGE]
    return (f"{code}: {evidence}" if evidence else code)[:MAX_MESSAGE]


def next_step(code: str) -> str:
    """Return what to do about a reason; empty: nothing, or the reason is not in the catalogue."""
    known = catalogue.CATALOGUE.get(code)
    return known.next_step if known is not None else ""


def told(status: TrainingJobStatus, state: State, reason: str, evidence: str = "") -> TrainingJobStatus:
    """The status with another state and the sentence of a reason."""
    return replace(status, state=state, reason=reason, message=say(reason, evidence))
