"""Tours are compared with the best known ones, which are computed once for a set of instances."""

import pytest
import torch
from tests.trainers.test_policy import session_of, task

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.cvrp import solver
from torchyard_trainers.cvrp.heuristics import savings
from torchyard_trainers.cvrp.instances import generate

PYVRP = pytest.importorskip("pyvrp", reason="pyvrp is not installed: pip install torchyard[solvers]")


def test_the_solver_finds_the_shortest_of_all_tours():
    instances = generate(3, "t", torch.arange(20), customers=3, capacity=10)
    found = solver.solve_all(instances)
    for number in range(20):
        xy, demand = instances.xy[number].double(), instances.demand[number]
        way = (xy[:, None] - xy[None]).square().sum(-1).sqrt()
        alone = 2 * way[0, 1:].sum().item()
        options = [alone]
        for i, j, k in ((1, 2, 3), (1, 3, 2), (2, 3, 1)):
            if demand[i] + demand[j] <= 10:
                options.append((way[0, i] + way[i, j] + way[j, 0] + 2 * way[0, k]).item())
            if demand.sum() <= 10:
                options.append((way[0, i] + way[i, k] + way[k, j] + way[j, 0]).item())
        assert found[number].item() == pytest.approx(min(options), abs=3e-4)


def test_best_known_tours_are_no_longer_than_savings_and_are_computed_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    work = task(customers=8, evalInstances=12, evalBatch=5, solver="pyvrp", decoding="multistart")
    session = session_of(work)
    metrics = work.evaluate(session)
    instances = generate(1234, "evaluation", torch.arange(12), customers=8, capacity=20, held_out=True)
    assert metrics["costSolver"] == pytest.approx(solver.solve_all(instances).mean().item())
    assert metrics["costSolver"] < savings(instances)[1].mean() == pytest.approx(metrics["costSavings"], abs=1e-5)
    gap = 100 * (metrics["costMultistart"] / metrics["costSolver"] - 1)
    assert metrics["gapSolverPercent"] == pytest.approx(gap)
    assert "than PyVRP (" in work.summary(metrics)["text"]
    monkeypatch.setattr(solver, "solve_all", lambda *_: pytest.fail("solved again"))
    assert work.evaluate(session)["costSolver"] == metrics["costSolver"]
    (file,) = tmp_path.glob("torchyard/cvrp/*.json")
    file.write_text("{")
    monkeypatch.setattr(solver, "solve_all", lambda each, _: torch.ones(len(each.demand), dtype=torch.float64))
    assert work.evaluate(session)["costSolver"] == 1, "a file that cannot be read is written again"


def test_a_solver_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(solver, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"solver: pyvrp is not installed; install it: pip install 'torchyard"):
        task(solver="pyvrp")
