"""What a look at a cluster finds."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """One thing that was looked at."""

    verdict: Literal["ok", "note", "wrong"]
    what: str
    fix: str = ""


class Leader(NamedTuple):
    """The operator that leads."""

    namespace: str
    pod: str
    account: str
    image: str
    pull_policy: str
    intake: str
    namespaces: tuple[str, ...]
    """That it looks after; none: all."""
