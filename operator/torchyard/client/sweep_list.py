"""The sweeps of a location, with their state."""

import time
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from torchyard.api.formatting import name_of_file
from torchyard.api.resource import TrainingJob
from torchyard.client.location import Location, connection_to
from torchyard.local.sweeps import is_sweep_controlled, load_sweep, sweep_names, trial_jobs
from torchyard.sweeps.plan import SweepView, plan
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.trials import trial_of


class Listing(NamedTuple):
    """The sweeps of a location by name, and what is wrong with those that cannot be read."""

    sweeps: list[TrainingSweep]
    damaged: dict[str, str]
    where: str = ""
    """The location in words; empty: this machine."""


def sweeps_here() -> Listing:
    """Return the sweeps of this machine with the status that an operator would give them."""
    sweeps: list[TrainingSweep] = []
    damaged: dict[str, str] = {}
    for name in sweep_names():
        try:
            sweep = load_sweep(name)
            sweeps.append(with_status(sweep, trial_jobs(sweep)))
        except ValueError as error:
            damaged[name_of_file(name)] = name_of_file(f"cannot be read: {error}")
    return Listing(sweeps, damaged)


def with_status(sweep: TrainingSweep, jobs: Mapping[int, TrainingJob]) -> TrainingSweep:
    """Return a sweep of this machine with the status that an operator would give it.

    Raises:
        ValueError: a trial was damaged.
    """
    status = plan(SweepView(sweep=sweep, trials=[trial_of(job) for job in jobs.values()], now=time.time())).status
    if status.state == "Running" and not is_sweep_controlled(sweep.metadata.name):
        status = msgspec.structs.replace(status, state="Suspended")
    return msgspec.structs.replace(sweep, status=status)


async def sweeps_there(location: Location, *, everywhere: bool = False) -> Listing:
    """Return the sweeps of a namespace of a cluster, or of all.

    Raises:
        TorchYardError: the cluster does not answer, or has no TrainingSweep resource.
    """
    from torchyard.client.remote import sweeps

    async with connection_to(location) as remote:
        found, damaged = await sweeps.listed(remote, everywhere=everywhere)
        return Listing(found, damaged, remote.where)
