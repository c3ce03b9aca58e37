"""Problems and solutions of CVRPLIB: what is read, what is refused and why, and what a policy makes of them."""

import json

import pytest
import torch

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.cvrp import cvrplib, tours
from torchyard_trainers.cvrp.evaluation import place
from torchyard_trainers.cvrp.policy import Policy

# The depot is node 2; distances are 3-4-5 triangles and one that rounds.
SMALL = """NAME : small-n5
COMMENT : (made for tests, Optimal value: 30)
TYPE : CVRP
DIMENSION : 5
EDGE_WEIGHT_TYPE : EUC_2D
CAPACITY : 10
NODE_COORD_SECTION
1 3 4
2 0 0
3 -3 4
4 6 8
5 1 1
DEMAND_SECTION
1 4
2 0
3 5
4 6
5 2
DEPOT_SECTION
2
-1
EOF
"""


def write(folder, text=SMALL, name="small.vrp"):
    path = folder / name
    path.write_text(text)
    return path


def test_a_problem_is_read_with_its_depot_first(tmp_path):
    problem = cvrplib.read(write(tmp_path))
    assert problem.name == "small-n5"
    assert problem.xy == ((0, 0), (3, 4), (-3, 4), (6, 8), (1, 1))
    assert problem.demand == (0, 4, 5, 6, 2)
    assert (problem.capacity, problem.best, problem.metric) == (10, 30, "EUC_2D")


def test_every_distance_is_rounded_by_itself(tmp_path):
    problem = cvrplib.read(write(tmp_path))
    assert problem.length([1, 3, 0, 4, 2, 0, 0]) == (5 + 5 + 10) + (1 + 5 + 5)
    up = cvrplib.read(write(tmp_path, SMALL.replace("EUC_2D", "CEIL_2D")))
    assert up.length([4]) == 4


def test_the_solution_beside_a_problem_is_checked_and_says_what_is_best_known(tmp_path):
    path = write(tmp_path)
    write(tmp_path, "Route #1: 1 3\nRoute #2: 4 2\nCost 31\n", "small.sol")
    problem = cvrplib.read(path)
    assert problem.best == 31
    assert cvrplib.write_solution(problem, [1, 3, 0, 4, 2, 0, 0]) == "Route #1: 1 3\nRoute #2: 4 2\nCost 31\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Route #1: 1 3\nRoute #2: 4\nCost 31\n", "do not see each customer of small-n5 exactly once"),
        ("Route #1: 1 3 4\nRoute #2: 2\nCost 31\n", "route 1 carries 12, capacity is 10"),
        ("Route #1: 1 3\nRoute #2: 4 2\nCost 30\n", "Cost 30, but its routes are 31 long"),
        ("Route #1: 1 x\n", r"small.sol:1: 'Route #1: 1 x' is no route"),
    ],
)
def test_what_is_no_solution_is_refused(tmp_path, text, complaint):
    write(tmp_path, text, "small.sol")
    with pytest.raises(ConfigError, match=complaint):
        cvrplib.read(write(tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("TYPE : CVRP", "TYPE : VRPTW", "TYPE: VRPTW is not supported"),
        ("EUC_2D", "EXPLICIT", "EDGE_WEIGHT_TYPE: 'EXPLICIT' has no plane"),
        ("CAPACITY : 10", "CAPACITY : ten", "CAPACITY: 'ten' is no whole number"),
        ("CAPACITY : 10", "CAPACITY : 10\nDISTANCE : 200", "DISTANCE: 200: routes of limited length"),
        ("DIMENSION : 5", "DIMENSION : 6", "NODE_COORD_SECTION: has 5 nodes, not 1 to 6"),
        ("1 3 4", "1 3 four", r"small.vrp:8: NODE_COORD_SECTION: '1 3 four' holds no numbers"),
        ("1 3 4", "1 3", r"small.vrp:8: NODE_COORD_SECTION: give a node and 2 finite values"),
        ("4 6\n5 2", "4 11\n5 2", "node 4: 11 is not between 1 and CAPACITY 10"),
        ("\n2 0\n3 5", "\n2 3\n3 5", "the depot, node 2, has demand 3"),
        ("2\n-1", "2\n3\n-1", "DEPOT_SECTION"),
        ("DEMAND_SECTION", "TIME_WINDOW_SECTION", r"small.vrp:13: TIME_WINDOW_SECTION is not supported"),
    ],
)
def test_a_file_that_is_no_such_problem_names_line_and_field(tmp_path, old, new, complaint):
    assert old in SMALL
    with pytest.raises(ConfigError, match=r"trainer\.params\.instances: .*" + complaint):
        cvrplib.read(write(tmp_path, SMALL.replace(old, new, 1)))


def test_an_empty_folder_and_a_missing_file_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no \.vrp file"):
        cvrplib.find(tmp_path)
    with pytest.raises(ConfigError, match="No such file"):
        cvrplib.find(tmp_path / "no.vrp")


def test_a_problem_is_put_into_the_unit_square_unstretched_and_solved(tmp_path):
    problem = cvrplib.read(write(tmp_path))
    instances = place(problem, torch.device("cpu"))
    assert instances.xy.shape == (1, 5, 2)
    assert instances.xy.amin() == 0
    assert instances.xy[..., 0].max() == 1
    distance = (instances.xy[0, 0] - instances.xy[0, 1]).norm() / (instances.xy[0, 0] - instances.xy[0, 3]).norm()
    assert distance.item() == pytest.approx(0.5)
    with torch.no_grad():
        routes = Policy("gt", 16, 2, 1)(instances)
    tours.check(instances, routes.moves, routes.cost)
    assert problem.length(routes.moves[0, 0].tolist()) >= 30


def test_a_run_solves_its_files_and_shows_table_tours_and_curve(yard, tmp_path):
    from gangs import config

    folder = tmp_path / "problems"
    folder.mkdir()
    write(folder)
    write(folder, SMALL.replace("small-n5", "other").replace("Optimal value: 30", ""), "other.vrp")
    params = {"instances": str(folder), "decoding": "augmented", "evalEvery": 4}
    yard.train(config(params=params), 2)
    final = yard.checkpoints / "final"
    facts = json.loads((final / "evaluation.json").read_text())
    found = {entry["name"]: entry for entry in facts["files"]}
    assert set(found) == {"small-n5", "other"}
    assert found["small-n5"]["best"] == 30
    assert found["other"]["best"] is None
    problem = cvrplib.find(folder / "small.vrp")[0]
    assert cvrplib.read_solution(final / "solutions" / "small-n5.sol", problem) == found["small-n5"]["cost"]
    whats = [row["what"] for row in facts["rows"]]
    assert whats[:4] == ["am, greedy", "am, 8 symmetries", "nearest neighbour", "savings"]
    metrics = yard.report()["metrics"]
    assert metrics["gapBestKnownPercent"] == pytest.approx(100 * (found["small-n5"]["cost"] / 30 - 1))
    assert metrics["costAugmented"] <= metrics["cost"]
    assert "small-n5" in (final / "tours.svg").read_text()
    assert (final / "curve.svg").read_text().count("<polyline") == 1
    names = {artifact["name"] for artifact in yard.report()["artifacts"]}
    assert {"final/evaluation.json", "final/tours.svg", "final/curve.svg"} <= names
