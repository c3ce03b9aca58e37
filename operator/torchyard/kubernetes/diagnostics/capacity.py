"""Whether the nodes can hold a whole gang, and what is free for it: figures for the scheduler's `Insufficient`.

What the pods of the gang itself hold counts as free for it.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal

from msgspec import Struct

from torchyard.api.reasons import Reason
from torchyard.api.values import plural
from torchyard.kubernetes.objects import ResourceLimits

GIB = 1024**3
# Only pods of jobs are watched. If these leave enough, other pods use the rest.
OTHERS = ", less what pods of others use"

Amount = Callable[[ResourceLimits], str | float]
"""Of one resource."""


class Resource(Struct, frozen=True):
    """One resource, and the form of an amount of it."""

    of: Amount
    shown: Callable[[Decimal], str]


class Room(Struct, frozen=True):
    """The capacity of a node, and what the pods of other jobs leave of it."""

    has: Decimal
    free: Decimal


def room(resource: Resource, asked: Decimal, pods: int, nodes: Sequence[Room]) -> tuple[str, str]:
    """Return a reason code, empty where the scheduler's own is right, and the evidence.

    Args:
        resource: that is short.
        asked: by each pod.
        pods: of the gang.
        nodes: that labels and taints let it onto.
    """
    shown = resource.shown
    need = f"it needs {shown(asked * pods)}" + (f" ({pods} pods x {shown(asked)})" if pods > 1 else " in one pod")
    has, largest = sum((each.has for each in nodes), Decimal(0)), max((each.has for each in nodes), default=Decimal(0))
    if _fitting(asked, [each.has for each in nodes]) < pods:
        where = f"{plural(len(nodes), 'node')} it may use"
        return (
            Reason.CLUSTER_TOO_SMALL,
            f"{need}, the {where} {'has' if len(nodes) == 1 else 'have'} {shown(has)}, at most {shown(largest)} on one",
        )
    free = [each.free for each in nodes]
    others = OTHERS if _fitting(asked, free) >= pods else ""
    most = max(free, default=Decimal(0))
    return "", f"{need}, free are at most {shown(sum(free, Decimal(0)))}, on one node at most {shown(most)}{others}"


def _fitting(asked: Decimal, nodes: Sequence[Decimal]) -> int:
    """Return how many pods fit on nodes that are otherwise empty."""
    return sum(int(each // asked) for each in nodes) if asked > 0 else 0


def gpus(amount: Decimal) -> str:
    """Write an amount of GPUs."""
    return plural(int(amount), "GPU")


def cores(amount: Decimal) -> str:
    """Write an amount of CPU."""
    return f"{amount.normalize():,f} CPU"


def gibibytes(amount: Decimal) -> str:
    """Write an amount of memory."""
    return f"{amount / GIB:,.1f} GiB"
