"""The next step towards a command: the fencing rules of a round (pure). See the table of verbs in docs/protocol.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional


@dataclass(frozen=True)
class RoundState:
    """The rounds that this agent has accepted and stopped, and the one that it runs.

    Attributes:
        accepted: newest round ever accepted.
        fence: newest round ever stopped; it and older ones are never started.
        running: the round whose workers run now.
        ending: those workers have been asked to end, or to save and end.
    """

    accepted: int = 0
    fence: int = 0
    running: Optional[int] = None
    ending: bool = False
    saving: bool = False


@dataclass(frozen=True)
class Move:
    """What to do next: `start`, `stop`, `save`, `exit` or `nothing`."""

    verb: str
    round: int = 0
    seconds: float = 0.0
    code: int = 0


NOTHING = Move("nothing")


def next_move(rounds: RoundState, command: Dict[str, Any]) -> Move:
    """Return the next step towards `command`; call it again after each step, until it is `nothing`.

    Raises:
        ValueError: a field of the command is missing or of the wrong kind.
    """
    verb = command.get("verb")
    if verb == "exit":
        code = _integer(command, "code")
        return Move("exit", code=code) if rounds.running is None else _stop(rounds)
    if verb == "run":
        return _run(rounds, _integer(command, "round"))
    if verb in ("stop", "save-and-stop"):
        if rounds.running is None or rounds.running > _integer(command, "round"):
            return NOTHING
        if verb == "stop":
            return _stop(rounds)
        return NOTHING if rounds.ending else Move("save", seconds=_seconds(command))
    return NOTHING


def _run(rounds: RoundState, wished: int) -> Move:
    if wished <= max(rounds.accepted, rounds.fence):
        return NOTHING
    return Move("start", round=wished) if rounds.running is None else _stop(rounds)


def _stop(rounds: RoundState) -> Move:
    return NOTHING if rounds.ending and not rounds.saving else Move("stop")


def _integer(command: Dict[str, Any], name: str) -> int:
    value = command.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"command `{command.get('verb')}`: `{name}` must be an integer, got {value!r}")  # noqa: TRY004 - one kind of bad command
    return value


def _seconds(command: Dict[str, Any]) -> float:
    value = command.get("graceSeconds", 0)
    if not isinstance(value, (int, float)) or value < 0:
        raise ValueError(f"command `save-and-stop`: `graceSeconds` must be a number >= 0, got {value!r}")
    return float(value)
