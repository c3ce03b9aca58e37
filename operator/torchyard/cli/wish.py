"""A wish for a profile: the file that a rank of a built-in workload looks for in its run folder while it trains."""

import json
import uuid
from typing import Literal

from torchyard.cli.errors import RefusalError

FILE = "profile.json"
MAX_STEPS = 100


def wish_for(kind: Literal["trace", "memory"], steps: int, rank: int | None) -> str:
    """The contents of the file.

    Args:
        kind: a Chrome trace of some steps, or a snapshot of memory.
        steps: to record.
        rank: that shall record; None: all.

    Raises:
        RefusalError: so many steps would fill the disk, or there are none.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise RefusalError(f"--steps {steps} is not possible", f"ask for 1 to {MAX_STEPS}")
    return json.dumps({"id": uuid.uuid4().hex, "kind": kind, "steps": steps, "rank": rank})


def refuse_deaf(name: str, *, built_in: bool) -> None:
    """Refuse to ask a program that would not hear.

    Raises:
        RefusalError: it is no workload of ours.
    """
    if not built_in:
        raise RefusalError(f"{name!r} is no built-in workload, and would not hear", "use torch.profiler in its program")
