"""Routing problems behind one interface: instances, and tours that a checker in plain Python accepts."""

import itertools
import math

import pytest
import torch

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.randomness import sample_keys, split_keys
from torchyard_trainers.cvrp import params, tours
from torchyard_trainers.cvrp.decoding import seek
from torchyard_trainers.cvrp.evaluation import make
from torchyard_trainers.cvrp.policy import Policy
from torchyard_trainers.cvrp.problems import Problem, open_problem
from torchyard_trainers.cvrp.problems.vrptw import HORIZON
from torchyard_trainers.cvrp.solver import solve_all
from torchyard_trainers.cvrp.task import Cvrp

PROBLEMS = ("cvrp", "tsp", "vrptw")


def settled(problem, **given):
    small = {"problem": problem, "customers": 7, "embedding": 16, "heads": 2, "layers": 1, "evalInstances": 8}
    small |= {"capacity": 20} if problem != "tsp" else {}
    return params.resolve_params(small | given, Parallelism())


def cost_by_hand(problem, instances, row, moves):
    """Drive one tour as a person would; return its length, or what is wrong with it."""
    xy, demand = instances.xy[row].double().tolist(), instances.demand[row].tolist()
    more = instances.more[row].tolist() if instances.more is not None else None
    length, load, clock, here = 0.0, 0.0, 0.0, 0
    if sorted(node for node in moves if node) != list(range(1, len(xy))):
        return "each customer once"
    for at, node in enumerate([*moves, 0]):
        way = math.dist(xy[here], xy[node])
        length, clock = length + way, clock + way
        if problem == "tsp" and node == 0 and any(moves[at:]):
            return "one tour"
        if more is not None:
            opens, closes, service = more[node]
            if clock > closes + 1e-5:
                return "in time"
            clock = max(clock, opens) + service
        load += demand[node]
        if node == 0:
            load = clock = 0.0
        if load > float(instances.capacity):
            return "capacity"
        here = node
    return length


def best_by_hand(problem, instances, row):
    """Try every order of customers and every place to go home."""
    nodes = instances.xy.shape[1]
    found = []
    for order in itertools.permutations(range(1, nodes)):
        for cuts in itertools.product([False, True], repeat=nodes - 2 if problem != "tsp" else 0):
            moves = [order[0]]
            for customer, cut in itertools.zip_longest(order[1:], cuts, fillvalue=False):
                moves += [0, customer] if cut else [customer]
            found.append(cost_by_hand(problem, instances, row, moves))
    return min(each for each in found if isinstance(each, float))


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("model", ["am", "dgt"])
def test_tours_of_policies_and_heuristics_are_solutions(name, model):
    torch.manual_seed(1)
    problem, settings, ids = open_problem(name), settled(name), torch.arange(40)
    instances = make(settings, "train", ids)
    policy = Policy(model, 16, 2, 1, problem=problem)
    with torch.no_grad():
        sampled = policy(instances, split_keys(sample_keys(3, ids), 6), likelihood=True)
        found = [sampled[:2], *(seek(policy, instances, how, 4, ids)[:2] for how in ("greedy", "multistart"))]
    found = [(moves, cost) for cost, moves in found]
    found += [compared.solve(instances) for compared in problem.heuristics.values()]
    for moves, cost in found:
        problem.check(instances, moves, cost)
        for row, samples in enumerate(moves.tolist()):
            for one, claimed in zip(samples, cost[row].tolist(), strict=True):
                assert cost_by_hand(name, instances, row, one) == pytest.approx(claimed, abs=1e-4)
    assert found[-1][1].mean() < found[-2][1].mean(), "the heuristic that gaps are to is better than nearest neighbour"


@pytest.mark.parametrize("name", PROBLEMS)
def test_likelihoods_of_all_tours_of_a_small_instance_sum_to_one(name):
    torch.manual_seed(2)
    policy = Policy("gt", 16, 2, 1, problem=open_problem(name))
    instances = make(settled(name, customers=4 if name == "tsp" else 2), "train", torch.arange(1))
    with torch.no_grad():
        routes = policy(instances, split_keys(torch.arange(1), 2048), likelihood=True)
    ways = zip(map(tuple, routes.moves[0].tolist()), routes.log_likelihood[0].exp().tolist(), strict=True)
    assert sum(dict(ways).values()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("name", PROBLEMS)
def test_no_tour_is_shorter_than_the_best_of_all_which_the_solver_finds(name):
    pytest.importorskip("pyvrp")
    problem, settings = open_problem(name), settled(name, customers=6 if name == "tsp" else 5, capacity=None)
    instances = make(settings, "train", torch.arange(4))
    best = [best_by_hand(name, instances, row) for row in range(4)]
    assert solve_all(instances, problem).tolist() == pytest.approx(best, abs=2e-3)
    for compared in problem.heuristics.values():
        assert (compared.solve(instances)[1][:, 0] >= torch.tensor(best) - 1e-4).all()


def test_checkers_reject_tours_that_are_late_or_go_home_in_between():
    vrptw, instances = open_problem("vrptw"), make(settled("vrptw"), "train", torch.arange(1))
    moves, _ = vrptw.nearest(instances)
    order = [node for node in moves[0, 0].tolist() if node]
    late = next(
        each
        for each in itertools.permutations(order, 4)
        if cost_by_hand("vrptw", _only(instances, each), 0, [1, 2, 3, 4]) == "in time"
    )
    some = _only(instances, late)
    with pytest.raises(tours.InvalidTourError, match="too late"):
        vrptw.check(some, torch.tensor([[[1, 2, 3, 4]]]), vrptw.cost(some, torch.tensor([[[1, 2, 3, 4]]])))
    tsp, cities = open_problem("tsp"), make(settled("tsp", customers=4), "train", torch.arange(1))
    broken = torch.tensor([[[1, 0, 2, 3]]])
    with pytest.raises(tours.InvalidTourError, match="home in between"):
        tsp.check(cities, broken, tsp.cost(cities, broken))


def _only(instances, nodes):
    """The depot and these customers, with little to carry."""
    chosen = torch.tensor([0, *nodes])
    return instances._replace(
        xy=instances.xy[:, chosen], demand=torch.tensor([[0.0, 1, 1, 1, 1]]), more=instances.more[:, chosen]
    )


def test_windows_follow_the_published_generator():
    instances = make(settled("vrptw", customers=20, capacity=30), "train", torch.arange(2000))
    way = (instances.xy - instances.xy[:, :1]).norm(dim=-1)[:, 1:]
    opens, closes, service = instances.more[:, 1:].unbind(-1)
    assert (opens >= way).all(), "a vehicle that leaves at 0 waits"
    assert (closes + service + way <= HORIZON + 1e-5).all(), "it is home in time"
    assert (service.min(), service.max()) == pytest.approx((0.15, 0.18), abs=1e-3)
    width = closes - opens
    assert (width.min(), width.max()) == pytest.approx((0.18, 0.2), abs=1e-3)
    assert instances.more[:, 0].unique(dim=0).tolist() == [[0, pytest.approx(HORIZON), 0]]
    assert make(settled("tsp", customers=20), "train", torch.arange(3)).xy.shape == (3, 20, 2)


class Open(Problem):
    """A tour that need not come home: any class of the user's."""

    def cost(self, instances, moves):
        last = instances.xy[:, None].expand(-1, moves.shape[1], -1, 2)
        visits = moves.gather(2, (moves != 0).sum(-1, keepdim=True) - 1)
        ends = last.gather(2, visits[..., None].expand(-1, -1, -1, 2))[:, :, 0]
        return tours.length(instances, moves) - (ends - instances.xy[:, :1]).norm(dim=-1)


class Flat(Problem):
    def describe_vehicles(self, _instances, state):
        return state.load


class Shut(Problem):
    def feasible(self, _instances, state):
        return state.visited & False


class Broken(Problem):
    def generate(self, numbers, sizes):
        raise KeyError("map")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"problem": "pdp"},
            "trainer.params.problem: 'pdp' is none of cvrp, tsp, vrptw; use one of them, or MODULE:CLA",
        ),
        ({"problem": "tsp", "capacity": 30}, "trainer.params.capacity: 30, but tsp has no demands; remove it"),
        ({"problem": "tsp", "customers": 3}, "trainer.params.customers: 3 cities are no tour; use at least 4"),
        ({"problem": "vrptw", "distribution": "grid-1-10"}, "trainer.params.distribution: grid-1-10, but instances of"),
        (
            {"problem": "tsp", "instances": "x.vrp"},
            "trainer.params.instances: files of CVRPLIB are problems of cvrp, not",
        ),
        (
            {"problem": "tsp", "preset": "cvrp20"},
            "trainer.params.preset: cvrp20, but its problem is cvrp, not tsp; rem",
        ),
        (
            {"problem": "a:B", "solver": "pyvrp"},
            "trainer.params.solver: pyvrp knows cvrp, tsp, vrptw, not a:B; remove it",
        ),
    ],
)
def test_a_mistake_is_named_with_its_fix(given, message):
    with pytest.raises(ConfigError) as caught:
        params.resolve_params(given, Parallelism())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "outside_worlds:Flat",
            r"describe_vehicles returns shape \[2, 3\], expected \[2, 3, 1\]; see Problem in torch",
        ),
        ("outside_worlds:Shut", "feasible returns torch.bool, or no node at all; return bool, true somewhere"),
        ("outside_worlds:Broken", r"cost of 2 instances raised .*Error: .* \(test_cvrp_problems.py, line .*; see Prob"),
        ("nowhere:Thing", "'nowhere:Thing', but there is no module 'nowhere'; set workingDir to its folder"),
        (
            "outside_worlds:Hill",
            "but outside_worlds has no class Hill derived from torchyard_trainers.cvrp.problems.Pro",
        ),
    ],
)
def test_a_class_that_is_no_problem_is_named(name, message, monkeypatch):
    for kind in (Flat, Shut, Broken):
        monkeypatch.setattr(f"outside_worlds.{kind.__name__}", kind, raising=False)
    with pytest.raises(ConfigError, match=message):
        Cvrp(params.resolve_params({"problem": name}, Parallelism()))


def test_a_problem_of_the_users_is_trained_on_like_those_here(monkeypatch):
    monkeypatch.setattr("outside_worlds.Open", Open, raising=False)
    work = Cvrp(settled("outside_worlds:Open", capacity=None, batch=4, samples=4))
    policy = work.build()
    instances = make(work.settings, "train", torch.arange(4))
    routes = policy(instances, split_keys(torch.arange(4), 4), likelihood=True)
    whole = tours.length(instances, routes.moves)
    assert (routes.cost < whole).all()
    work.problem.check(instances, routes.moves, routes.cost)
    assert list(work.problem.heuristics) == ["costNearest"]
