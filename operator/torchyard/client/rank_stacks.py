"""Where a rank stands: as the agent of its pod tells, and as people read it."""

import msgspec

from torchyard.api.formatting import clean

NO_STACKS = "no stacks: it ended, or it is no Python that the agent's hooks are in"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank stands, as its agent tells (docs/protocol.md)."""

    rank: int
    pid: int
    stacks: str | None = None
    at: str = ""  # innermost frame of the program itself
    waits: bool = False  # for other ranks
    pod: str = ""


def read(answer: bytes, pod: str) -> list[Standing]:
    """What the agent of a pod answered."""
    return [msgspec.structs.replace(each, pod=pod) for each in msgspec.json.decode(answer, type=list[Standing])]


def shown(standing: Standing) -> str:
    """One rank, as people read it."""
    where = f", at {standing.at}" if standing.at else ""
    head = f"rank {standing.rank} ({standing.pod}){where}" + (", waiting for other ranks" if standing.waits else "")
    lines = (standing.stacks or NO_STACKS).strip().splitlines()
    return "\n".join([clean(head), *map(clean, lines)])
