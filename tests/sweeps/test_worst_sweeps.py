"""What the worst accepted sweep costs the operator: bounded work, and little memory that stays."""

import json
import random
import tracemalloc

import pytest
from tests.support.effort import calls_of
from tests.support.large_objects import largest

from torchyard.api.status import State
from torchyard.sweeps.outcomes import Trial, milestones_of, rungs
from torchyard.sweeps.parse import InvalidSweep, parse_sweep
from torchyard.sweeps.plan import SweepView, plan
from torchyard.sweeps.resource import TrainingSweep, TrialRecord, Unit

CALLS = 300_000
KEPT_BYTES = 96 * 1024  # a number of one digit is two bytes of JSON, and eight in a list
TRIALS, PARALLEL = 1000, 64
SPEC = {
    "objective": {"metric": "score", "goal": "maximize"},
    "algorithm": {"name": "random"},
    "parameters": [{"path": "trainer.params.p0", "float": {"min": 0, "max": 1}}],
    "maxTrials": TRIALS,
    "parallelTrials": PARALLEL,
    "jobTemplate": {"spec": {"trainer": {"name": "x:Y"}}},
}


def document(**spec):
    metadata = {"name": "x", "namespace": "team", "uid": "u", "resourceVersion": "1", "generation": 1}
    return {"kind": "TrainingSweep", "metadata": metadata, "spec": {**SPEC, **spec}}


def parameters(count, **more):
    return [{"path": f"trainer.params.p{number}", **more} for number in range(count)]


CONDITION = {"path": "trainer.params.p0", "values": list(range(64))}
WORST = {
    "values": parameters(7, choice=["x" * 26 + str(number) for number in range(64)]),
    "numbers": parameters(32, choice=list(range(64))),
    "conditions": [*parameters(1, choice=list(range(64))), *parameters(15, choice=[1], conditions=[CONDITION] * 4)[1:]],
    "ranges": parameters(32, float={"min": -1e300, "max": 1e300, "step": 1e-300}),
}


@pytest.mark.parametrize("given", WORST.values(), ids=WORST)
def test_the_worst_parameters_are_valid_and_cost_little_time_and_memory(given):
    text = json.dumps(document(parameters=given))
    assert isinstance(parse_sweep(json.loads(text)), TrainingSweep)
    assert calls_of(lambda: parse_sweep(json.loads(text))) < CALLS
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = parse_sweep(json.loads(text))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept is not None
    assert taken < KEPT_BYTES


def test_parameters_that_are_too_large_are_rejected_and_not_kept():
    text = json.dumps(document(parameters=parameters(32, choice=["x" * 250 + str(number) for number in range(64)])))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    found = parse_sweep(json.loads(text))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert isinstance(found, InvalidSweep)
    assert found.problem.startswith("spec.parameters: ")
    assert "more than 16 KiB: give fewer or shorter values" in found.problem
    assert taken < KEPT_BYTES


@pytest.mark.parametrize("spec", largest().values(), ids=largest())
def test_the_worst_job_costs_no_more_as_a_template(spec):
    given = document(jobTemplate={"spec": spec})
    assert calls_of(lambda: parse_sweep(given)) < CALLS


@pytest.mark.parametrize("stopping", ["asha", "hyperband", "median"])
def test_a_thousand_trials_are_decided_on_in_little_time(stopping):
    """All slots are free at once, and all trials exist: every decision back to the first possible one is tried."""
    sweep = parse_sweep(document(earlyStopping={"name": stopping, "firstPercent": 1, "factor": 2}))
    numbers, percents = random.Random(1), rungs(sweep.spec.early_stopping)
    names = milestones_of(sweep.spec).names
    trials = []
    for number in range(TRIALS):
        thresholds = {str(percent): 0.5 for percent in percents}
        unit = Unit(number=number, basis=max(0, number - 2 * PARALLEL), thresholds=thresholds)
        metrics = {names[percent]: numbers.random() for percent in percents}
        record = TrialRecord(number=number, parameters={"trainer.params.p0": 0.5}, units=[unit])
        trials.append(Trial(record=record, state=State.SUCCEEDED, metrics={**metrics, "score": numbers.random()}))
    assert calls_of(lambda: plan(SweepView(sweep=sweep, trials=trials, now=0.0))) < 5 * CALLS
