"""What the page shows of sweeps."""

from typing import Any

import msgspec

from torchyard.api.formatting import clean
from torchyard.api.values import figure
from torchyard.client.errors import TorchYardError
from torchyard.client.location import Location
from torchyard.client.summaries import seconds
from torchyard.client.sweep_charts import coordinates_of, history_of
from torchyard.client.sweep_list import Listing, sweeps_here, sweeps_there, with_status
from torchyard.client.sweeps import Sweep
from torchyard.sweeps.outcomes import outcomes_of
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.results import results_of, text_of
from torchyard.sweeps.sampler import Sampler, SamplerError
from torchyard.sweeps.sampling import MissingLibraryError, Past
from torchyard.sweeps.space import short_names, wanted_trials
from torchyard.sweeps.trials import trial_of

MAX_TRIALS = 2000
"""Shown of one sweep."""


async def sweep_rows(location: Location) -> dict[str, Any]:
    """Return the rows of a list of sweeps."""
    found = await _listing(location)
    rows = [_row(sweep) for sweep in found.sweeps]
    rows += [{"name": name, "state": "Unreadable", "reason": clean(why)} for name, why in found.damaged.items()]
    return {"sweeps": rows}


async def _listing(location: Location) -> Listing:
    if location.kind == "local":
        return sweeps_here()
    if location.namespace is None:
        try:
            return await sweeps_there(location, everywhere=True)
        except TorchYardError:  # the user may list those of one namespace only
            if location.api is not None:
                raise
            return await sweeps_there(location)
    return await sweeps_there(location)


def _row(sweep: TrainingSweep) -> dict[str, Any]:
    status, best = sweep.status, sweep.status.best
    return {
        "name": sweep.metadata.name, "namespace": sweep.metadata.namespace, "state": status.state or "New",
        "reason": status.reason, "trials": status.columns.trials, "running": status.trials.running,
        "best": f"{sweep.spec.objective.metric} {figure(best.value)}" if best is not None else "",
        "start": seconds(sweep.metadata.creation_timestamp),
    }  # fmt: skip


async def sweep_page(location: Location, name: str) -> dict[str, Any]:
    """Return a sweep with its trials and charts.

    Raises:
        TorchYardError: it does not exist or cannot be read.
    """
    sweep, jobs = await Sweep(name, "", location).found()
    if location.kind == "local":
        sweep = with_status(sweep, jobs)
    results, spec, status = results_of(sweep, jobs), sweep.spec, sweep.status
    names = short_names(spec.parameters)
    return {
        "name": name, "local": location.kind == "local", "namespace": sweep.metadata.namespace,
        "state": status.state or "New", "reason": status.reason, "message": clean(status.message),
        "goal": spec.objective.goal, "metric": spec.objective.metric, "algorithm": spec.algorithm.name,
        "wanted": wanted_trials(spec), "suspend": spec.suspend,
        "parameters": [[each.path, names[each.path]] for each in spec.parameters],
        "trials": [
            {
                "number": each.number, "name": each.name, "outcome": each.outcome, "state": each.state,
                "value": each.objective, "percent": each.percent, "best": each.best, "why": clean(each.why),
                "seconds": each.seconds,
                "parameters": {path: text_of(value) for path, value in each.parameters.items()},
            }
            for each in results[-MAX_TRIALS:]
        ],
        "leftOut": max(0, len(results) - MAX_TRIALS),
        "history": msgspec.to_builtins(history_of(sweep, results)),
        "coordinates": msgspec.to_builtins(coordinates_of(sweep, results)),
    }  # fmt: skip


async def importances_of(location: Location, name: str, sampler: Sampler) -> dict[str, Any]:
    """Return the importance of each parameter by path, and a sentence if there is none.

    Raises:
        TorchYardError: the sweep does not exist or cannot be read.
    """
    sweep, jobs = await Sweep(name, "", location).found()
    trials = [trial_of(job) for _, job in sorted(jobs.items())]
    past = [Past(number=each.record.number, parameters=each.record.parameters, basis=0) for each in trials]
    ended = [last for each in trials if (last := outcomes_of(sweep.spec, each)[-1]) is not None]
    try:
        shares = await sampler.importances(sweep.spec, ended, past)
    except (MissingLibraryError, SamplerError) as error:
        return {"shares": {}, "note": str(error)}
    return {"shares": shares, "note": "" if shares else "Too few trials trained to their end to tell."}
