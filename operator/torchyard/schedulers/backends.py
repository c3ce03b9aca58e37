"""The gang schedulers of this version, and how an installation switches them on."""

from collections.abc import Callable, Iterable

from torchyard.schedulers.coscheduling import Coscheduling
from torchyard.schedulers.kai import Kai
from torchyard.schedulers.kueue import Kueue
from torchyard.schedulers.native import Native
from torchyard.schedulers.protocol import Scheduler
from torchyard.schedulers.volcano import Volcano

BACKENDS: dict[str, Callable[..., Scheduler]] = {
    each.name: each for each in (Kueue, Native, Volcano, Coscheduling, Kai)
}
PRIORITY_BOOST = "priorityBoost"


def switched_on(names: Iterable[str]) -> tuple[Scheduler, ...]:
    """Return the schedulers that an installation names, each `name`, `name=schedulerName` or `kueue=priorityBoost`.

    Raises:
        ValueError: one is unknown, or its pods need no scheduler of their own.
    """
    return tuple(_scheduler(text) for text in names)


def _scheduler(text: str) -> Scheduler:
    name, _, option = text.partition("=")
    if name not in BACKENDS:
        raise ValueError(f"{text!r} is not a gang scheduler: use {', '.join(BACKENDS)}")
    if not option:
        return BACKENDS[name]()
    if (name, option) == (Kueue.name, PRIORITY_BOOST):
        return Kueue(priority_boost=True)
    if "scheduler_name" not in getattr(BACKENDS[name], "__struct_fields__", ()):
        raise ValueError(f"{text!r}: pods of {name} keep the default scheduler; write {name}")
    return BACKENDS[name](scheduler_name=option)
