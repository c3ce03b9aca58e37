"""Sample the parameters of the next trial with Optuna. Importing it takes a second: never in an event loop.

A sampler is made for each trial, from the outcomes that the decision uses; there is no database. Its seed is made
of the sweep's and of the trial's number. CMA-ES alone has a state that results do not show: its former trials are asked
for again, with what was known at the time.
"""

import importlib.util
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from torchyard.sweeps.outcomes import Outcome
from torchyard.sweeps.resource import TrialRecord
from torchyard.sweeps.space import applies, grid_point
from torchyard.sweeps.spec import Parameter, TrainingSweepSpec

STARTUP_TRIALS = 10
"""tpe draws its first trials at random."""
MIN_FOR_IMPORTANCE = 6


class MissingLibraryError(Exception):
    """A library that the algorithm needs is not installed; the message names the fix."""


class Past(Struct, frozen=True, kw_only=True):
    """A former trial: its parameters, and how many units were known when they were chosen."""

    number: int
    parameters: Mapping[str, Any]
    basis: int


def past_before(number: int, records: Iterable[TrialRecord]) -> list[Past]:
    """Return the trials before the one of a number, in order."""
    return [
        Past(number=each.number, parameters=each.parameters, basis=each.units[0].basis)
        for each in sorted(records, key=lambda record: record.number)
        if each.number < number
    ]


def suggest(
    spec: TrainingSweepSpec, number: int, basis: int, history: Sequence[Outcome], past: Sequence[Past]
) -> dict[str, Any]:
    """Return the parameters of a trial by path. Slow, and the same for the same arguments.

    Args:
        spec: of the sweep.
        number: of the trial.
        basis: number of units whose outcomes are known to it.
        history: those outcomes.
        past: the trials before it.

    Raises:
        MissingLibraryError: see `require_libraries`.
    """
    if spec.algorithm.name == "grid":
        return grid_point(spec, number)
    require_libraries(spec)
    import optuna  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    direction = spec.objective.goal
    if spec.algorithm.name == "cmaes":
        return _replayed(spec, number, basis, history, past)
    study = optuna.create_study(direction=direction, sampler=_sampler(spec, spec.algorithm.seed * 100_003 + number))
    parameters = {each.number: each.parameters for each in past}
    latest = {outcome.trial: outcome for outcome in history}
    for outcome in sorted(latest.values(), key=lambda each: each.trial):
        _add(study, spec, parameters[outcome.trial], outcome)
    return _asked(study, spec, number)


def require_libraries(spec: TrainingSweepSpec) -> None:
    """Check that what the algorithm imports is installed, without importing it.

    Raises:
        MissingLibraryError: a library is missing.
    """
    name = spec.algorithm.name
    needed = {"grid": (), "cmaes": ("optuna", "cmaes"), "gp": ("optuna", "torch", "scipy")}.get(name, ("optuna",))
    missing = [each for each in needed if importlib.util.find_spec(each) is None]
    if missing:
        extra = "gp" if name == "gp" else "sweep"
        raise MissingLibraryError(
            f"algorithm {name} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            f"installed where the sweep is controlled: `pip install 'torchyard[{extra}]'`, "
            f"or use {'tpe' if name == 'gp' else 'grid'}"
        )


def _sampler(spec: TrainingSweepSpec, seed: int) -> Any:
    import optuna  # noqa: PLC0415

    seed %= 2**32
    if spec.algorithm.name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if spec.algorithm.name == "cmaes":
        return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    if spec.algorithm.name == "gp":
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)


def _add(study: Any, spec: TrainingSweepSpec, parameters: Mapping[str, Any], outcome: Outcome) -> None:
    """Add a trial that has ended; one without a value is added as failed."""
    import optuna  # noqa: PLC0415

    states = optuna.trial.TrialState
    state = {"complete": states.COMPLETE, "stopped": states.PRUNED, "failed": states.FAIL}[outcome.kind]
    distributions = {each.path: _distribution(each) for each in spec.parameters if each.path in parameters}
    known = {path: parameters[path] for path in distributions}
    # Optuna ranks a pruned trial whose last value is NaN behind all others of that rung.
    values = {
        percent: math.nan if isinstance(value, str) else value
        for percent, value in outcome.values.items()
        if percent <= outcome.percent
    }
    study.add_trial(
        optuna.trial.create_trial(
            state=state,
            value=outcome.value if outcome.kind == "complete" else None,
            params={path: _as_category(distributions[path], value) for path, value in known.items()},
            distributions=distributions,
            intermediate_values=values,
        )
    )


def _distribution(parameter: Parameter) -> Any:
    import optuna  # noqa: PLC0415

    if (real := parameter.float_) is not None:
        return optuna.distributions.FloatDistribution(real.min, real.max, log=real.log, step=real.step)
    if (whole := parameter.int_) is not None:
        return optuna.distributions.IntDistribution(whole.min, whole.max, log=whole.log, step=whole.step)
    return optuna.distributions.CategoricalDistribution(parameter.choice)


def _as_category(distribution: Any, value: Any) -> Any:
    """Return a value as its distribution has it: 1 and 1.0 are one category, and true is another."""
    for each in getattr(distribution, "choices", ()):
        if each == value and isinstance(each, bool) == isinstance(value, bool):
            return each
    return value


def _asked(study: Any, spec: TrainingSweepSpec, number: int) -> dict[str, Any]:
    """Return the values of a new trial; a parameter whose conditions do not hold is left out."""
    distributions = {parameter.path: _distribution(parameter) for parameter in spec.parameters}
    if number < len(spec.first_trials):
        given = spec.first_trials[number]
        study.enqueue_trial({path: _as_category(distributions[path], value) for path, value in given.items()})
    trial = study.ask()
    values: dict[str, Any] = {}
    for parameter in spec.parameters:
        if applies(parameter, values):
            values[parameter.path] = trial._suggest(parameter.path, distributions[parameter.path])  # noqa: SLF001 -- public for each kind alone
    return values


def _replayed(
    spec: TrainingSweepSpec, number: int, basis: int, history: Sequence[Outcome], past: Sequence[Past]
) -> dict[str, Any]:
    """Return what a study suggests that was asked for each trial with what was known when that trial was decided.

    A stopped trial has the value of its rung, until it went on: then that of its end.
    """
    import optuna  # noqa: PLC0415

    study = optuna.create_study(direction=spec.objective.goal, sampler=_sampler(spec, spec.algorithm.seed))
    bases = {each.number: each.basis for each in past} | {number: basis}
    reported: dict[int, Outcome] = {}
    values: dict[str, Any] = {}
    for trial in range(number + 1):
        known = {each.trial: each for each in history if each.unit < bases.get(trial, 0) and each.trial < trial}
        if any(known[each] != outcome for each, outcome in reported.items()):
            study = _with_values(study, known)
        else:
            for each in [each for each in known if each not in reported]:
                study.tell(each, known[each].value, state=_final_state(known[each]))
        reported = known
        values = _asked(study, spec, trial)
    return values


def _with_values(study: Any, known: Mapping[int, Outcome]) -> Any:
    """Return a study with these outcomes and with the state that CMA-ES keeps on trials; a reported value is final."""
    import optuna  # noqa: PLC0415

    after = optuna.create_study(direction=study.direction, sampler=study.sampler)
    for before in study.get_trials(deepcopy=False):
        outcome = known.get(before.number)
        after.add_trial(
            optuna.trial.create_trial(
                state=_final_state(outcome) if outcome is not None else before.state,
                value=outcome.value if outcome is not None else None,
                params=before.params,
                distributions=before.distributions,
                system_attrs=before.system_attrs,
            )
        )
    return after


def _final_state(outcome: Outcome) -> Any:
    import optuna  # noqa: PLC0415

    return optuna.trial.TrialState.FAIL if outcome.value is None else optuna.trial.TrialState.COMPLETE


def importances(spec: TrainingSweepSpec, outcomes: Sequence[Outcome], past: Sequence[Past]) -> dict[str, float]:
    """Return the share of each parameter in what makes trials good, by path; empty with too few trials. Slow.

    PED-ANOVA (Watanabe et al. 2023), as Optuna has it, over the trials that trained to their end.
    """
    import optuna  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction=spec.objective.goal)
    parameters = {each.number: each.parameters for each in past}
    complete = [each for each in outcomes if each.kind == "complete"]
    if len(complete) < MIN_FOR_IMPORTANCE:
        return {}
    for outcome in complete:
        _add(study, spec, parameters[outcome.trial], outcome)
    always = [each.path for each in spec.parameters if not each.conditions]
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where all trials are equally good, parameters are equally important
        found = optuna.importance.get_param_importances(study, evaluator=evaluator, params=always)
    return {path: float(share) for path, share in found.items()}
