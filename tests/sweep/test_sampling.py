"""Parameters from Optuna, without a database: the same for the same results, and better ones than chance finds."""

import pytest

from torchyard.sweep.codec import read_sweep
from torchyard.sweep.outcomes import Outcome
from torchyard.sweep.sampling import Past, importances, suggest
from torchyard.sweep.space import is_member, trial_spec

X, KIND, N = "trainer.params.lr", "trainer.params.model", "trainer.params.epochs"


def spec_of(algorithm, seed=1):
    parameters = [
        {
            "path": X,
            "float": {"min": 0.001, "max": 1.0, "log": True, **({"step": None} if algorithm != "grid" else {})},
        },
        {"path": KIND, "choice": ["a", "b"]},
        {"path": N, "int": {"min": 1, "max": 9, "step": 2}, "conditions": [{"path": KIND, "values": ["b"]}]},
    ]
    if algorithm == "grid":
        parameters = [{"path": KIND, "choice": ["a", "b"]}, {"path": N, "int": {"min": 1, "max": 9, "step": 4}}]
    return read_sweep(
        {
            "metadata": {"name": "s"},
            "spec": {
                "objective": {"metric": "loss", "goal": "minimize"},
                "algorithm": {"name": algorithm, "seed": seed},
                "parameters": parameters,
                "jobTemplate": {"spec": {"trainer": {"name": "x:Y"}}},
            },
        }
    ).spec


def run(spec, count, lag=4):
    """Trials one after the other, each told of those that are `lag` before it."""
    past, outcomes = [], []
    for number in range(count):
        basis = max(0, number - lag + 1)
        values = suggest(spec, number, basis, outcomes[:basis], past)
        past.append(Past(number=number, parameters=values, basis=basis))
        loss = (values.get(X, 0.1) - 0.03) ** 2 * 100 + (values.get(KIND) == "a")
        outcomes.append(Outcome(unit=number, trial=number, kind="complete", value=loss))
    return past, outcomes


@pytest.mark.parametrize("algorithm", ["tpe", "random", "cmaes"])
def test_results_decide_and_nothing_else(algorithm):
    spec = spec_of(algorithm)
    past, outcomes = run(spec, 16)
    for each in past:
        again = suggest(spec, each.number, each.basis, outcomes[: each.basis], past[: each.number])
        assert again == each.parameters, "a controller that starts again suggests the same"
        assert all(
            is_member(parameter, again[parameter.path]) for parameter in spec.parameters if parameter.path in again
        )
        assert (N in again) == (again[KIND] == "b")
        assert trial_spec(spec.job_template.spec, again).trainer.params["lr"] == again[X]
    assert run(spec_of(algorithm, seed=2), 3)[0] != past[:3]


def test_tpe_learns():
    """Over the second half of five sweeps, against random search."""
    losses = {
        algorithm: sum(each.value for seed in range(5) for each in run(spec_of(algorithm, seed), 30)[1][15:])
        for algorithm in ("tpe", "random")
    }
    assert losses["tpe"] < 0.7 * losses["random"]


def test_a_grid_has_each_point_once():
    past, _ = run(spec_of("grid"), 6)
    assert [tuple(each.parameters.values()) for each in past] == [(k, n) for k in "ab" for n in (1, 5, 9)]


def test_stopped_and_failed_trials_are_told_as_such():
    spec = spec_of("tpe")
    past, outcomes = run(spec, 12)
    kinds = [
        Outcome(unit=0, trial=0, kind="failed"),
        Outcome(unit=1, trial=1, kind="stopped", value=3.0, percent=10, values={10: 3.0}),
        *outcomes[2:],
    ]
    values = suggest(spec, 12, 12, kinds, past)
    assert values.keys() >= {X, KIND}


def test_importances_find_what_matters():
    spec = spec_of("random")
    past, outcomes = run(spec, 40)
    found = importances(spec, outcomes, past)
    assert found.keys() == {X, KIND}
    assert abs(sum(found.values()) - 1) < 1e-6
    assert importances(spec, outcomes[:3], past) == {}
