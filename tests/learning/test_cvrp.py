"""CVRP really learns: the tours of a trained model of preset tiny are shorter than those of savings."""

from typing import NamedTuple

import pytest
from tests.support.learning import TWENTY_CUSTOMERS


class Size(NamedTuple):
    """Standard instances, and the mean tours of savings and of nearest neighbour on the evaluation set."""

    params: dict
    savings: float
    nearest: float


TEN = Size({"customers": 10, "capacity": 20}, 4.67, 5.65)
TWENTY = Size(TWENTY_CUSTOMERS, 6.34, 8.06)


@pytest.mark.parametrize(
    ("model", "baseline", "size"),
    [
        ("gat", "shared", TEN),
        ("gt", "shared", TEN),
        ("gt", "rollout", TEN),
        ("dgt", "shared", TEN),
        ("am", "shared", TWENTY),
    ],
    ids=["gat", "gt", "gt-rollout", "dgt", "am-20-customers"],
)
def test_tours_of_every_start_and_symmetry_are_shorter_than_those_of_savings_with_every_seed(
    learn, model, baseline, size
):
    found = learn("cvrp", model=model, baseline=baseline, **size.params)
    for summary in found:
        assert summary["costMultistart"] < summary["costSavings"], found
        assert summary["costMultistart"] < summary["cost"] < summary["costNearest"] < summary["costUntrained"], found
        assert summary["costSavings"] == pytest.approx(size.savings, abs=0.01)
        assert summary["costNearest"] == pytest.approx(size.nearest, abs=0.1)


@pytest.mark.parametrize(("problem", "reference"), [("tsp", "costSavings"), ("vrptw", "costInsertion")])
def test_tours_of_other_problems_are_shorter_than_those_of_their_heuristic(learn, problem, reference):
    found = learn("cvrp", problem=problem, steps=300)
    for summary in found:
        assert summary["costMultistart"] < summary[reference] < summary["costNearest"], found
        assert summary["costMultistart"] < summary["cost"] < summary["costUntrained"], found
