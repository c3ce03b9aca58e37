"""Problems and solutions of CVRPLIB: what is read, what is refused and why, and what a policy makes of them."""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.metrics.plots import read_curve
from torchyard_trainers.cvrp import published, tours
from torchyard_trainers.cvrp.evaluation import place
from torchyard_trainers.cvrp.files import cvrplib, solutions
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


def write(folder, content=SMALL, name="small.vrp"):
    """A file of text or bytes; of None: a folder in its place."""
    path = folder / name
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_problem_is_read_with_its_depot_first(tmp_path):
    problem = cvrplib.read(write(tmp_path))
    assert problem.name == "small-n5"
    assert problem.xy == ((0, 0), (3, 4), (-3, 4), (6, 8), (1, 1))
    assert problem.demand == (0, 4, 5, 6, 2)
    assert (problem.capacity, problem.best, problem.metric) == (10, 30, "EUC_2D")


def test_a_file_without_an_end_in_sight_is_not_read(tmp_path):
    with (path := write(tmp_path)).open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match=r"small.vrp has more than 64 MiB; give a \.vrp file"):
        cvrplib.read(path)


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
    assert solutions.write(problem, [1, 3, 0, 4, 2, 0, 0]) == "Route #1: 1 3\nRoute #2: 4 2\nCost 31\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Route #1: 1 3\nRoute #2: 4\nCost 31\n", "do not see each customer of small-n5 exactly once"),
        ("Route #1: 1 3 4\nRoute #2: 2\nCost 31\n", "route 1 carries 12, capacity is 10"),
        (
            "Route #1: 1 3\nRoute #2: 4 2\nCost 30\n",
            "Cost 30, but its routes are 31 long under EUC_2D and 31.41 in real",
        ),
        ("Route #1: 1 3\nRoute #2: 4 2\nCost 31.44\n", "Cost 31.44, but its routes are 31 long"),
        ("Route #1: 1 x\n", r"small.sol:1: 'Route #1: 1 x' is no route"),
        ("Route #1 1 3\n", r"small.sol:1: 'Route #1 1 3' is no route"),
        (f"Route #1: {'9' * 5000}\n", r"small.sol:1: 'Route #1: 9+' is no route"),
        ("Cost nan\n", r"small.sol:1: 'Cost nan' is no cost"),
        ("Cost\n", r"small.sol:1: 'Cost' is no cost"),
        ("Cost 1\nCost 2\n", r"small.sol:2: 'Cost 2' is a second cost"),
        (b"Route #1: 1 3\n\x80\x81", r"small.sol:2: byte 0x80 is no UTF-8"),
        (None, r"small.sol is no file; give a readable \.sol file"),
    ],
)
def test_an_invalid_solution_is_rejected(tmp_path, text, complaint):
    write(tmp_path, text, "small.sol")
    with pytest.raises(ConfigError, match=complaint):
        cvrplib.read(write(tmp_path))


@pytest.mark.parametrize(
    ("cost", "best", "metric"),
    [
        ("31", 31, "EUC_2D"),
        ("31.0", 31, "EUC_2D"),
        ("31.41", 31.4142, "real distances"),
        ("31.414214", 31.4142, "real distances"),
    ],
)
def test_a_cost_of_real_distances_is_compared_with_real_distances(tmp_path, cost, best, metric):
    write(tmp_path, f"Route #1: 1 3\nRoute #2: 4 2\nCost {cost}\n", "small.sol")
    problem = cvrplib.read(write(tmp_path))
    assert (problem.best, problem.metric) == (pytest.approx(best, abs=1e-4), metric)
    assert problem.length([1, 3, 0, 4, 2]) == pytest.approx(problem.best)
    again = write(tmp_path, solutions.write(problem, [1, 3, 0, 4, 2]), "again.sol")
    assert solutions.read(again, problem) == (pytest.approx(problem.best), metric)


def test_a_best_known_length_with_decimals_is_one_of_real_distances(tmp_path):
    problem = cvrplib.read(write(tmp_path, SMALL.replace("Optimal value: 30", "Best value: 31.41")))
    assert (problem.best, problem.metric) == (31.41, "real distances")


NODES, DEMANDS = "1 3 4\n2 0 0\n", "1 4\n2 0\n3 5\n"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("TYPE : CVRP", "TYPE : VRPTW", ":3: TYPE: VRPTW is not supported"),
        ("EUC_2D", "EXPLICIT", ":5: EDGE_WEIGHT_TYPE: 'EXPLICIT' has no plane"),
        ("EDGE_WEIGHT_TYPE : EUC_2D\n", "", ": EDGE_WEIGHT_TYPE: is missing"),
        ("CAPACITY : 10", "CAPACITY : ten", ":6: CAPACITY: 'ten' is no whole number"),
        ("CAPACITY : 10", "CAPACITY : 10.5", ":6: CAPACITY: '10.5' is no whole number"),
        ("CAPACITY : 10", "CAPACITY : 1²", ":6: CAPACITY: '1²' is no whole number"),
        ("CAPACITY : 10", f"CAPACITY : {'9' * 5000}", ":6: CAPACITY: '9{60}' is no whole number"),
        ("CAPACITY : 10", "CAPACITY : 99999999999", ":6: CAPACITY: 99999999999 is more than 16777216"),
        ("CAPACITY : 10", "CAPACITY : 10\nCAPACITY : 12", ":7: CAPACITY: '12': is there twice"),
        ("CAPACITY : 10", "CAPACITY : 10\nDISTANCE : 200", ":7: DISTANCE: 200: routes of limited length"),
        ("CAPACITY : 10", "CAPACITY : 10\nDISTANCE : abc", ":7: DISTANCE: 'abc' is no number"),
        ("CAPACITY : 10", "CAPACITY : 10\nSERVICE_TIME : 5 min", ":7: SERVICE_TIME: '5 min' is no number"),
        ("CAPACITY : 10", "CAPACITY : 10\nSERVICE_TIME : nan", ":7: SERVICE_TIME: 'nan' is no number"),
        ("DIMENSION : 5", "DIMENSION : 6", "NODE_COORD_SECTION: has 5 nodes, not 1 to 6"),
        ("DIMENSION : 5", "DIMENSION : 999999999999999", "NODE_COORD_SECTION: has 5 nodes"),
        ("DIMENSION : 5", "DIMENSION : 4", ":12: NODE_COORD_SECTION: node 5 is not between 1 and DIMENSION 4"),
        ("1 3 4", "1 3 four", ":8: NODE_COORD_SECTION: '1 3 four': give a node and 2 finite numbers"),
        ("1 3 4", "1 3 inf", ":8: NODE_COORD_SECTION: '1 3 inf': give a node and 2 finite numbers"),
        ("1 3 4", "1 3", ":8: NODE_COORD_SECTION: '1 3': give a node and 2 finite numbers"),
        ("1 3 4", "one 3 4", ":8: NODE_COORD_SECTION: 'one 3 4' does not begin with a node"),
        ("1 3 4", "1 1e308 -1e308", r":8: NODE_COORD_SECTION: node 1: 1e\+308 -1e\+308 is beyond"),
        (NODES, "1 3 4\n2 0 0\n2 7 7\n", ":10: NODE_COORD_SECTION: node 2 is there twice, first in line 9"),
        (DEMANDS, "1 4\n2 0\n3 3.7\n", ":16: DEMAND_SECTION: '3 3.7': give a node and 1 whole number"),
        (DEMANDS, "1 4\n2 0.9\n3 5\n", ":15: DEMAND_SECTION: '2 0.9': give a node and 1 whole number"),
        (DEMANDS, "1 4\n2 3\n3 5\n", ":15: DEMAND_SECTION: the depot, node 2, has demand 3"),
        (DEMANDS, "1 11\n2 0\n3 5\n", ":14: DEMAND_SECTION: node 1: 11 is not between 1 and CAPACITY 10"),
        (DEMANDS, "1 -4\n2 0\n3 5\n", ":14: DEMAND_SECTION: node 1: -4 is not between 1"),
        (DEMANDS, "1 4\n2 0\n3 5\n3 6\n", ":17: DEMAND_SECTION: node 3 is there twice, first in line 16"),
        ("DEPOT_SECTION", "DEMAND_SECTION\n1 1\nDEPOT_SECTION", ":19: DEMAND_SECTION: is there twice"),
        ("DEMAND_SECTION", "TIME_WINDOW_SECTION", ":13: TIME_WINDOW_SECTION: is not supported"),
        ("2\n-1", "2\n3\n-1", "DEPOT_SECTION: '2 3'; give one node"),
        ("2\n-1", "-1", "DEPOT_SECTION: ''; give one node"),
        ("2\n-1", "foo\n-1", ":20: DEPOT_SECTION: 'foo' is no node between 1 and DIMENSION 5"),
        ("2\n-1", "1.5\n-1", ":20: DEPOT_SECTION: '1.5' is no node"),
        ("2\n-1", "6\n-1", ":20: DEPOT_SECTION: '6' is no node"),
        ("DEPOT_SECTION\n2", "DEPOT_SECTION 2", ":19: DEPOT_SECTION: '2' stands behind it"),
    ],
)
def test_a_file_that_is_no_such_problem_names_line_and_field(tmp_path, old, new, complaint):
    assert old in SMALL
    with pytest.raises(ConfigError, match=r"trainer\.params\.instances: \S*small\.vrp.*" + complaint) as refused:
        cvrplib.read(write(tmp_path, SMALL.replace(old, new, 1)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new"), [("2\n-1", "2.0\n-1"), ("2\n-1", "2"), (DEMANDS, "1 4.0\n2 0.0\n3 5\n"), ("\n", "\r\n")]
)
def test_whole_numbers_may_have_a_zero_behind_the_point_and_lines_any_end(tmp_path, old, new):
    assert cvrplib.read(write(tmp_path, SMALL.replace(old, new))) == cvrplib.read(write(tmp_path, name="small.vrp"))


ODD = ("1e308", "-1", "0", "3.7", "nan", "1_0", "²", "\0", ":", "9" * 20)
PARTS = st.sampled_from([*SMALL.replace("\n", " \n ").split(" "), *ODD])
EDITS = st.tuples(st.integers(0, len(SMALL)), st.integers(0, 30), st.lists(PARTS | st.text(max_size=5), max_size=8))


@st.composite
def edited(draw):
    """The problem above with a few places written over."""
    text = SMALL
    for start, length, parts in draw(st.lists(EDITS, max_size=3)):
        text = text[:start] + " ".join(parts) + text[start + length :]
    return text.encode("utf-8", "replace")


SOLVED = st.lists(st.sampled_from(["Route #1: 1 3", "Route #2: 4 2", "Cost 31", "Cost 31.41", "Cost 1e999", "Route"]))


@settings(max_examples=300)
@given(
    st.binary() | st.text().map(lambda text: text.encode("utf-8", "replace")) | edited(),
    st.none() | st.binary() | SOLVED,
)
def test_whatever_is_in_a_file_is_a_problem_that_can_be_solved_or_is_refused(content, solution):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if solution is not None:
            write(folder, "\n".join(solution) if isinstance(solution, list) else solution, "small.sol")
        try:
            problem = cvrplib.read(write(folder, content))
        except ConfigError as refused:
            assert str(refused).startswith("trainer.params.instances: ")  # noqa: PT017 - either is right
            return
    moves = [stop for customer in range(1, len(problem.demand)) for stop in (customer, 0)]
    assert 0 <= problem.length(moves) < float("inf")
    instances = place(problem, torch.device("cpu"))
    assert bool(((instances.xy >= 0) & (instances.xy <= 1)).all())
    routes = torch.tensor(moves)[None, None]
    tours.check(instances, routes, tours.length(instances, routes))
    assert problem.name.isprintable()


def test_an_empty_folder_and_a_missing_file_are_named(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"holds no \.vrp file"):
        cvrplib.find(tmp_path)
    with pytest.raises(ConfigError, match=r"no\.vrp: no such file or folder; give"):
        cvrplib.find(tmp_path / "no.vrp")
    with pytest.raises(ConfigError, match="File name too long"):
        cvrplib.find(tmp_path / ("n" * 300))
    with pytest.raises(ConfigError, match="no such file"):
        cvrplib.find(Path("\0"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=rf"vrp: no such file or folder in {tmp_path}, the folder that the trainer runs"
    ):
        cvrplib.find(Path("vrp"))


def test_no_name_of_a_file_leads_out_of_the_folder_or_over_another_file(tmp_path):
    names = ["evil.vrp", "a b.vrp", "a_b.vrp", "A_B.vrp", "...vrp", ".vrp", f"{'l' * 240}.vrp", "ä\n.vrp"]
    for name, given_name in zip(
        names, ["../../evil", "/etc/evil", "evil", "", "..", ".", "n" * 300, "\x1b[2J"], strict=True
    ):
        write(tmp_path, SMALL.replace("small-n5", given_name), name)
    problems = cvrplib.find(tmp_path)
    found = [f"{problem.slug}.sol" for problem in problems]
    assert len({name.casefold() for name in found}) == len(names)
    assert all((tmp_path / name).parent == tmp_path and len(name) < 200 and name[0] != "." for name in found)
    assert {problem.name for problem in problems} >= {"../../evil", "n" * 60, "?[2J"}


@pytest.mark.parametrize(
    ("problem", "note"),
    [
        ((20, 30, "uniform"), None),
        ((20, 20, "uniform"), "those of 20 customers are for capacity 30"),
        ((20, 30, "grid-1-10"), "uniform instances of 20 customers and capacity 30, 50 customers"),
        ((10, 20, "uniform"), "uniform instances of 20 customers and capacity 30, 50 customers"),
    ],
)
def test_the_table_says_why_there_is_no_published_length(problem, note):
    found = published.why_none(*problem)
    assert found is None if note is None else note in found
    assert (published.reference(*problem) is None) == (found is not None)


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
    from tests.support.trainers.gangs import config

    folder = tmp_path / "problems"
    folder.mkdir()
    write(folder)
    write(folder, SMALL.replace("small-n5", "../../evil").replace("Optimal value: 30", ""), "other.vrp")
    write(folder, SMALL, "third.vrp")
    write(folder, "Route #1: 1 3\nRoute #2: 4 2\nCost 31.41\n", "third.sol")
    params = {"instances": str(folder), "decoding": "augmented", "evalEvery": 4}
    yard.train(config(params=params), 2)
    final = yard.checkpoints / "final"
    facts = json.loads((final / "evaluation.json").read_text())
    found = {entry["solution"]: entry for entry in facts["files"]}
    assert [entry["name"] for entry in found.values()] == ["../../evil", "small-n5", "small-n5"]
    assert [entry["best"] for entry in found.values()] == [None, 30, pytest.approx(31.4142)]
    assert [entry["distances"] for entry in found.values()] == ["EUC_2D", "EUC_2D", "real distances"]
    assert set(found) == {f"solutions/{name}.sol" for name in ("small", "other", "third")}
    assert {path.name for path in yard.root.rglob("*.sol")} == {"small.sol", "other.sol", "third.sol"}
    for problem in cvrplib.find(folder):
        entry = found[f"solutions/{problem.slug}.sol"]
        assert solutions.read(final / entry["solution"], problem) == (pytest.approx(entry["cost"]), entry["distances"])
    whats = [row["what"] for row in facts["rows"]]
    assert whats[:4] == ["am, greedy", "am, 8 symmetries", "nearest neighbour", "savings"]
    assert {"small-n5 (small), best known 30", "small-n5 (third), best known 31.41 in real distances"} <= set(whats)
    assert "no published means" in facts["note"]
    metrics = yard.report()["metrics"]
    gaps = [100 * (entry["cost"] / entry["best"] - 1) for entry in found.values() if entry["best"]]
    assert metrics["gapBestKnownPercent"] == pytest.approx(sum(gaps) / 2)
    assert metrics["costAugmented"] <= metrics["cost"]
    assert "small-n5" in (final / "tours.svg").read_text()
    assert (final / "curve.svg").read_text().count("<polyline") == 1
    names = {artifact["name"] for artifact in yard.report()["artifacts"]}
    assert {"final/evaluation.json", "final/tours.svg", "final/curve.svg"} <= names


@pytest.mark.parametrize("torn", [b'{"step": 4, "cost": 5.', b"\0\0\0\n", b"\xff\n", b"4\n", b'{"cost": 5}\n'])
def test_a_line_that_a_lost_node_cut_short_costs_a_curve_a_point_and_not_the_run(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 2, "cost": 6.0}\n' + torn + b'{"step": 4, "cost": 5.0}\n{"step": 6, "cost": 4.0}\n')
    assert {(2, 6.0), (6, 4.0)} <= set(read_curve(path, "cost"))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_run_with_a_corrupt_file_ends_with_64_and_one_sentence_before_it_starts(yard, tmp_path, mode):
    from tests.support.trainers.gangs import config

    file = write(tmp_path, SMALL.replace("2\n-1", "foo\n-1"))
    settled = config(params={"instances": str(file)})
    settled["trainer"]["mode"] = mode
    gang = yard.start(settled)
    assert gang.wait() == [64], gang.output()
    assert "Traceback" not in gang.output()
    assert "small.vrp:20: DEPOT_SECTION: 'foo' is no node" in gang.output()
    assert not yard.checkpoints.exists()
