"""Sentences about how programs responded to a request to save and stop."""

from torchyard.api.status import TrainingJobStatus
from torchyard.engine.view import RoundExit, View

_WORST_FIRST = ("killed", "deaf", "ended")


def answer(view: View, status: TrainingJobStatus) -> str:
    """Return the worst response among the members of the newest round; empty if they report their saves."""
    agents = (view.agents[uid] for uid in status.rendezvous.members if uid in view.agents)
    ends = [each.exit for each in agents if each.exit is not None and each.exit.round == status.round]
    known = [each for each in ends if each.answer in _WORST_FIRST]
    if not known:
        return ""
    return _words(min(known, key=lambda each: (_WORST_FIRST.index(each.answer), -each.answer_seconds)))


def _words(end: RoundExit) -> str:
    seconds = f"{end.answer_seconds:.0f} s"
    if end.answer == "ended":
        return f"the program ended by itself with exit code {end.answer_code}, {seconds} after SIGTERM"
    if end.answer == "killed":
        return f"the program had not ended {seconds} after it was asked to save, and was killed; raise spec.gracePeriod"
    return "the program does not handle SIGTERM, so it was ended without a save"
