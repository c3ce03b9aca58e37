"""The routing problem: the standard instances, what is feasible, what a checker accepts, against brute force."""

import itertools

import pytest
import torch

from torchyard_trainers.cvrp import tours
from torchyard_trainers.cvrp.decoding import seek, symmetries
from torchyard_trainers.cvrp.files.solutions import routes_of
from torchyard_trainers.cvrp.heuristics import savings
from torchyard_trainers.cvrp.instances import Instances, distances, generate
from torchyard_trainers.cvrp.params import PRESETS
from torchyard_trainers.cvrp.policy import Policy
from torchyard_trainers.cvrp.problems import Cvrp


def problem(xy, demand, capacity):
    return Instances(torch.tensor([xy]), torch.tensor([demand]), torch.tensor(float(capacity)))


SQUARE = problem([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]], [0.0, 4.0, 5.0, 6.0], 10)


def best_length(instances):
    """Shortest solution by trying every order of customers and every place to go home."""
    xy, demand = instances.xy[0], instances.demand[0]
    customers = range(1, len(demand))
    best = float("inf")
    for order in itertools.permutations(customers):
        for cuts in itertools.product([False, True], repeat=len(order) - 1):
            load, here, total = 0.0, 0, 0.0
            for customer, cut in zip(order, (True, *cuts), strict=True):
                if cut:
                    total += float((xy[here] - xy[0]).norm())
                    load, here = 0.0, 0
                load += float(demand[customer])
                total += float((xy[here] - xy[customer]).norm())
                here = customer
                if load > float(instances.capacity):
                    break
            else:
                best = min(best, total + float((xy[here] - xy[0]).norm()))
    return best


def test_instances_follow_the_standard():
    made = generate(1, "train", torch.arange(4000), customers=20, capacity=30)
    assert made.xy.shape == (4000, 21, 2)
    assert made.demand[:, 0].eq(0).all()
    assert sorted(made.demand[:, 1:].unique().tolist()) == [float(d) for d in range(1, 10)]
    assert made.demand[:, 1:].mean() == pytest.approx(5, abs=0.05)
    assert made.xy.mean() == pytest.approx(0.5, abs=0.01)
    sizes = {name: (each["customers"], each["capacity"]) for name, each in PRESETS.items() if "problem" not in each}
    assert sizes == {"tiny": (10, 20), "cvrp20": (20, 30), "cvrp50": (50, 40), "cvrp100": (100, 50)}


def test_the_grid_distribution_has_whole_hundredths_and_demands_to_ten():
    made = generate(1, "train", torch.arange(2000), customers=20, capacity=30, distribution="grid-1-10")
    assert torch.allclose((made.xy * 100).round() / 100, made.xy)
    assert made.xy.max() == 1
    assert made.demand.max() == 10
    assert made.demand[:, 1:].min() == 1


def test_streams_are_different_instances_and_ids_the_same_ones():
    ids = torch.arange(16)
    train = generate(1, "train", ids, customers=5, capacity=20)
    assert not torch.equal(train.xy, generate(1, "evaluation", ids, customers=5, capacity=20).xy)
    assert torch.equal(train.xy[9:10], generate(1, "train", ids[9:10], customers=5, capacity=20).xy)


def test_a_vehicle_may_not_idle_overload_or_return_to_a_customer():
    state = tours.depart(SQUARE, 1)
    assert tours.feasible(SQUARE, state)[0, 0].tolist() == [False, True, True, True]
    state = tours.visit(SQUARE, state, torch.tensor([[1]]))
    assert tours.feasible(SQUARE, state)[0, 0].tolist() == [True, False, True, True]
    state = tours.visit(SQUARE, state, torch.tensor([[3]]))
    assert tours.feasible(SQUARE, state)[0, 0].tolist() == [True, False, False, False]
    state = tours.visit(SQUARE, state, torch.tensor([[0]]))
    assert tours.feasible(SQUARE, state)[0, 0].tolist() == [False, False, True, False]
    state = tours.visit(SQUARE, tours.visit(SQUARE, state, torch.tensor([[2]])), torch.tensor([[0]]))
    assert bool(tours.served(state))
    assert tours.feasible(SQUARE, state)[0, 0].tolist() == [True, False, False, False]


def test_length_is_the_way_there_and_back():
    moves = torch.tensor([[[1, 3, 0, 2]]])
    assert tours.length(SQUARE, moves).item() == pytest.approx(1 + 2**0.5 + 1 + 2 * 2**0.5)


@pytest.mark.parametrize(
    ("moves", "complaint"),
    [
        ([1, 2, 0, 0], "exactly once"),
        ([1, 2, 1, 3], "exactly once"),
        ([1, 3, 2, 0], "capacity"),
        ([3, 0, 2, 1], None),
        ([1, 3, 0, 2], None),
    ],
)
def test_the_checker_accepts_solutions_only(moves, complaint):
    moves = torch.tensor([[moves]])
    claimed = tours.length(SQUARE, moves)
    if complaint is None:
        tours.check(SQUARE, moves, claimed)
    else:
        with pytest.raises(tours.InvalidTourError, match=complaint):
            tours.check(SQUARE, moves, claimed)


def test_the_checker_does_not_believe_a_length():
    with pytest.raises(tours.InvalidTourError, match="lengths differ"):
        tours.check(SQUARE, torch.tensor([[[3, 0, 2, 1]]]), torch.tensor([[2.0]]))


def test_no_solution_is_shorter_than_the_best_of_all():
    torch.manual_seed(1)
    policy = Policy("gt", 16, 2, 1)
    instances = generate(3, "small", torch.arange(6), customers=5, capacity=12)
    keys = torch.arange(6 * 64).view(6, 64)
    with torch.no_grad():
        sampled = policy(instances, keys)
    tours.check(instances, sampled.moves, sampled.cost)
    moves, nearest = Cvrp().nearest(instances)
    tours.check(instances, moves, nearest)
    for index in range(6):
        best = best_length(
            Instances(instances.xy[index : index + 1], instances.demand[index : index + 1], instances.capacity)
        )
        assert min(sampled.cost[index].min().item(), nearest[index].item()) >= best - 1e-5
        assert sampled.cost[index].min().item() == pytest.approx(best, rel=0.15)


def test_nearest_neighbour_is_as_long_as_published():
    instances = generate(1, "evaluation", torch.arange(2000), customers=10, capacity=20)
    assert Cvrp().nearest(instances)[1].mean() == pytest.approx(5.62, abs=0.05)


def test_savings_are_those_of_clarke_and_wright_by_hand():
    """Depot in a corner of a square: joining the two far customers 1 and 2 saves most; 3 joins 2 only if it fits."""
    fits = problem([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]], [0.0, 4.0, 5.0, 6.0], 15)
    moves, cost = savings(fits)
    tours.check(fits, moves, cost)
    assert cost.item() == pytest.approx(4)
    full = SQUARE  # capacity 10: 1 and 2 fit together, 3 does not fit with either
    moves, cost = savings(full)
    tours.check(full, moves, cost)
    assert cost.item() == pytest.approx(1 + 1 + 2**0.5 + 2)


def test_savings_are_solutions_between_the_best_and_nearest_neighbour():
    instances = generate(1, "evaluation", torch.arange(500), customers=20, capacity=30)
    moves, cost = savings(instances)
    tours.check(instances, moves, cost)
    assert cost.mean() < Cvrp().nearest(instances)[1].mean() - 0.5
    small = generate(3, "small", torch.arange(6), customers=5, capacity=12)
    for index in range(6):
        one = Instances(small.xy[index : index + 1], small.demand[index : index + 1], small.capacity)
        assert savings(one)[1].item() >= best_length(one) - 1e-5


def test_savings_join_pairs_in_their_order_one_after_the_other():
    instances = generate(3, "savings", torch.arange(6), customers=40, capacity=30)
    distance, demand = distances(instances), instances.demand
    moves, _ = savings(instances)
    for number in range(6):
        d, wanted = distance[number], demand[number]
        pairs = [(i, j) for i in range(1, 41) for j in range(i + 1, 41)]
        saved = torch.stack([d[0, i] + d[0, j] - d[i, j] for i, j in pairs])
        routes = [[node] for node in range(1, 41)]
        for at in saved.argsort(descending=True, stable=True).tolist():
            i, j = pairs[at]
            one, other = (next(route for route in routes if node in route) for node in (i, j))
            load = sum(float(wanted[node]) for node in one + other)
            if one is other or load > 30 or i not in (one[0], one[-1]) or j not in (other[0], other[-1]):
                continue
            routes.remove(one)
            routes.remove(other)
            routes.append((one if one[-1] == i else one[::-1]) + (other if other[0] == j else other[::-1]))
        found = routes_of(moves[number, 0].tolist())
        assert sorted(min(route, route[::-1]) for route in found) == sorted(min(r, r[::-1]) for r in routes)


def test_savings_of_a_thousand_customers_are_solutions():
    instances = generate(3, "savings", torch.arange(1), customers=1000, capacity=50)
    tours.check(instances, *savings(instances))


def test_eight_symmetries_are_the_same_problem():
    instances = generate(1, "t", torch.arange(3), customers=6, capacity=20)
    seen = symmetries(instances)
    assert seen.xy.shape == (24, 7, 2)
    assert torch.equal(seen.xy[:3], instances.xy)
    assert len({tuple(row) for row in seen.xy[::3].flatten(1).tolist()}) == 8
    assert torch.allclose(distances(seen), distances(instances).repeat(8, 1, 1), atol=1e-6)
    assert torch.equal(seen.demand, instances.demand.repeat(8, 1))


@pytest.mark.parametrize("how", ["sampling", "augmented", "multistart"])
def test_seeking_harder_gives_a_checked_tour_that_is_no_longer(how):
    torch.manual_seed(6)
    policy = Policy("gt", 16, 2, 1)
    ids = torch.arange(20)
    instances = generate(1, "t", ids, customers=8, capacity=20)
    with torch.no_grad():
        greedy = seek(policy, instances, "greedy", 1, ids)
        found = seek(policy, instances, how, 64, ids)
        augmented = seek(policy, instances, "augmented", 1, ids)
        again = seek(policy, Instances(instances.xy[7:9], instances.demand[7:9], instances.capacity), how, 64, ids[7:9])
    tours.check(instances, found.moves, found.cost)
    assert found.cost.shape == (20, 1)
    assert found.cost.mean() < greedy.cost.mean() - 0.3
    if how != "sampling":
        # The instance itself is one of the eight, and the customer that a greedy route begins with one of all.
        assert (found.cost <= greedy.cost + 1e-5).all()
        assert (found.cost <= augmented.cost + 1e-5).all()
    assert torch.allclose(found.cost[7:9], again.cost)
