"""Sentences for the user. Reasons come from the catalogue; a cluster's own codes are quoted, not lost."""

from msgspec.structs import replace

from torchyard.api import catalogue
from torchyard.api.status import State, TrainingJobStatus

MAX_MESSAGE = 1024


def say(code: str, evidence: str = "") -> str:
    """One sentence of at most 1,024 characters: cause (evidence); next step."""
    if code in catalogue.CATALOGUE:
        return catalogue.say(code, evidence)[:MAX_MESSAGE]
    return (f"{code}: {evidence}" if evidence else code)[:MAX_MESSAGE]


def told(status: TrainingJobStatus, state: State, reason: str, evidence: str = "") -> TrainingJobStatus:
    """The status with another state and the sentence of a reason."""
    return replace(status, state=state, reason=reason, message=say(reason, evidence))
