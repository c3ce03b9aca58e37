"""Sentences for the user. Reasons come from the catalogue; a cluster's own codes are quoted, not lost."""

from torchyard.api import catalogue

MAX_MESSAGE = 1024


def say(code: str, evidence: str = "") -> str:
    """One sentence of at most 1,024 characters: cause (evidence); next step."""
    if code in catalogue.CATALOGUE:
        return catalogue.say(code, evidence)[:MAX_MESSAGE]
    return (f"{code}: {evidence}" if evidence else code)[:MAX_MESSAGE]
