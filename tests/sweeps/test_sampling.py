"""Parameters from Optuna, without a database: the same for the same results, and better ones than chance finds."""

import importlib.util
import signal

import pytest
from msgspec.structs import replace

from torchyard.sweeps.codec import read_sweep
from torchyard.sweeps.outcomes import Outcome
from torchyard.sweeps.sampler import Sampler, SamplerError
from torchyard.sweeps.sampling import MissingLibraryError, Past, importances, require_libraries, suggest
from torchyard.sweeps.space import strange, trial_spec

pytest.importorskip("optuna", reason="optuna is not installed: pip install torchyard[sweep]")

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
    """Run trials one after the other, each with the results of those that are `lag` before it."""
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
            not strange(parameter, [again[parameter.path]]) for parameter in spec.parameters if parameter.path in again
        )
        assert (N in again) == (again[KIND] == "b")
        assert trial_spec(spec.job_template.spec, again).trainer.params["lr"] == again[X]
    assert run(spec_of(algorithm, seed=2), 3)[0] != past[:3]


@pytest.mark.parametrize("algorithm", ["tpe", "random", "cmaes"])
def test_the_first_trials_have_the_parameters_that_were_given(algorithm):
    given = [{X: 0.03, KIND: "b", N: 7}, {X: 0.5}, {KIND: "b"}, {}]
    spec = replace(spec_of(algorithm), first_trials=given)
    past, outcomes = run(spec, 16)
    assert past[0].parameters == given[0]
    assert past[1].parameters[X] == 0.5
    assert past[2].parameters[KIND] == "b"
    assert N in past[2].parameters, "what is left out is chosen, and exists where its conditions hold"
    for each in past:
        assert suggest(spec, each.number, each.basis, outcomes[: each.basis], past[: each.number]) == each.parameters
    others = replace(spec, first_trials=[{X: 0.9, KIND: "a"}])
    if algorithm == "tpe":
        assert run(others, 16)[0][-1] != past[-1], "the algorithm learns from them"


def test_tpe_learns():
    """Over the second half of five sweeps, against random search."""
    losses = {
        algorithm: sum(each.value for seed in range(5) for each in run(spec_of(algorithm, seed), 30)[1][15:])
        for algorithm in ("tpe", "random")
    }
    assert losses["tpe"] < 0.7 * losses["random"]


def test_gaussian_processes_follow_from_seed_and_results():
    for package in ("torch", "scipy"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install torchyard[gp]")
    past, outcomes = run(spec_of("random"), 12)
    values = [suggest(spec_of("gp", seed), 12, 12, outcomes, past) for seed in (1, 1)]
    assert values[0] == values[1]
    assert values[0] != suggest(spec_of("gp"), 12, 12, outcomes[:3], past), "the first trials are drawn at random"


@pytest.mark.parametrize(
    ("algorithm", "missing", "said"),
    [
        ("tpe", {"optuna"}, r"tpe needs optuna.*pip install 'torchyard\[sweep\]'"),
        ("cmaes", {"cmaes"}, "cmaes needs cmaes"),
        ("gp", {"torch", "scipy"}, r"gp needs torch and scipy.*torchyard\[gp\]'`, or use tpe"),
        ("grid", {"optuna", "torch"}, None),
    ],
)
def test_a_missing_library_is_named_with_the_fix(monkeypatch, algorithm, missing, said):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else found(name))
    if said is None:
        require_libraries(spec_of(algorithm))
    else:
        with pytest.raises(MissingLibraryError, match=said):
            require_libraries(spec_of(algorithm))


async def test_the_samplers_process_makes_the_same_suggestions_and_is_replaced_after_its_end():
    spec, sampler = spec_of("tpe"), Sampler()
    past, outcomes = run(spec, 12)
    wanted = suggest(spec, 12, 12, outcomes, past)
    assert await sampler.suggest(spec, 12, 12, outcomes, past) == wanted
    first = sampler._process
    first.kill()
    await first.wait()
    assert await sampler.suggest(spec, 12, 12, outcomes, past) == wanted
    second = sampler._process
    await sampler.close()
    assert second.returncode != 0
    assert second.pid != first.pid


async def test_a_sampler_that_does_not_answer_is_ended():
    sampler = Sampler(limit=0.001)
    with pytest.raises(SamplerError, match="has not answered"):
        await sampler.suggest(spec_of("tpe"), 0, 0, [], [])
    assert sampler._process is None
    (end,) = sampler._killed
    await sampler.close()
    assert end.result() == -signal.SIGKILL


def test_a_grid_has_each_point_once():
    past, _ = run(spec_of("grid"), 6)
    assert [tuple(each.parameters.values()) for each in past] == [(k, n) for k in "ab" for n in (1, 5, 9)]


def test_stopped_and_failed_trials_are_reported_as_such():
    spec = spec_of("tpe")
    past, outcomes = run(spec, 12)
    kinds = [
        Outcome(unit=0, trial=0, kind="failed"),
        Outcome(unit=1, trial=1, kind="stopped", value=3.0, percent=10, values={10: 3.0}),
        Outcome(unit=2, trial=2, kind="stopped", non_finite="NaN", percent=10, values={10: "NaN"}),
        Outcome(unit=3, trial=3, kind="failed", non_finite="-Infinity", values={10: 3.0}),
        *outcomes[4:],
    ]
    values = suggest(spec, 12, 12, kinds, past)
    assert values.keys() >= {X, KIND}


@pytest.mark.parametrize("algorithm", ["tpe", "cmaes"])
def test_a_trial_that_was_stopped_and_continued_counts_with_its_final_value(algorithm):
    spec = spec_of(algorithm)
    past, outcomes = run(spec, 24, lag=1)
    bases = [replace(each, basis=each.number + (each.number > 3)) for each in past]

    def suggested(end):
        rung = {"trial": 2, "values": {10: 5.0}}
        stopped = Outcome(unit=2, kind="stopped", value=5.0, percent=10, **rung)
        ended = Outcome(unit=4, kind="complete", value=end, **rung)  # trial 3 was asked for when 5.0 was known
        after = [replace(each, unit=each.unit + 1) for each in outcomes[4:]]
        return suggest(spec, 24, 25, [*outcomes[:2], stopped, outcomes[3], ended, *after], bases)

    assert suggested(0.0) == suggested(0.0)
    assert suggested(0.0) != suggested(50.0)


def test_importances_find_the_relevant_parameters():
    spec = spec_of("random")
    past, outcomes = run(spec, 40)
    found = importances(spec, outcomes, past)
    assert found.keys() == {X, KIND}
    assert abs(sum(found.values()) - 1) < 1e-6
    assert importances(spec, outcomes[:3], past) == {}
