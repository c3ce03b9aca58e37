"""A routing policy that leaves: as graphs, and as a page that routes vehicles in a real browser."""

import json
import re

import pytest
import torch
from tests.support.trainers.browser import checks, needs_browser, open_page

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.export.publish import export
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.workload import Session
from torchyard_trainers.core.world import World
from torchyard_trainers.cvrp import params
from torchyard_trainers.cvrp.task import Cvrp

pytestmark = pytest.mark.e2e

MODELS = ("am", "gat", "gt", "dgt")


def exported(folder, form, **given):
    """An export of a policy with random weights; the critic of baseline critic must stay behind."""
    settings = params.resolve_params({"baseline": "critic", **given}, Parallelism())
    work = Cvrp(settings)
    model = work.build()
    world = World(0, 1, 0, torch.device("cpu"), grouped=False)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    session = Session(
        Parallel("single", model, model), Precision("fp32", world.device, sharded=False), world, reporter, None
    )
    export(lambda: Cvrp(settings), session, folder, [form], {"step": 3, "metrics": {"cost": 4.75}}, verify=True)
    return folder / "export" / form


@pytest.mark.parametrize("form", ["onnx", "pt2"])
@pytest.mark.parametrize(
    "given", [*({"model": model} for model in MODELS), {"problem": "tsp", "customers": 11}, {"problem": "vrptw"}]
)
def test_a_cvrp_policy_is_exported_as_a_graph(tmp_path, form, given):
    if form == "onnx":
        pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install torchyard[export]")
    manifest = json.loads((exported(tmp_path, form, **given) / "manifest.json").read_text())
    assert manifest["verified"]["policy"]["sameChoices"] >= 0.999
    assert manifest["programs"]["policy"]["inputs"]["xy"]["shape"] == ["cases", 11, 2]


@needs_browser
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"problem": "tsp"}, r"\d+ of 10 cities visited, driven [\d.]+"),
        (
            {"problem": "vrptw", "model": "dgt"},
            r"\d+ of 10 customers served, load \d+ of 20, time [\d.]+, driven [\d.]+",
        ),
    ],
)
def test_the_browser_chooses_as_pytorch_in_other_problems(tmp_path, given, shown):
    page = open_page(exported(tmp_path, "web", **given), tmp_path / "browser")
    assert {name: ok for name, (ok, _) in checks(page).items()} == {"digests": True, "golden": True}, page
    assert re.search(rf'id="status">{shown}', page), page


@needs_browser
@pytest.mark.parametrize("model", MODELS)
def test_the_browser_chooses_as_pytorch_in_a_thousand_situations_and_solves_instances(tmp_path, model):
    folder = exported(tmp_path, "web", model=model, customers=12, capacity=20)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    assert not any("critic" in entry["name"] for entry in json.loads((folder / "manifest.json").read_text())["weights"])
    page = open_page(folder, tmp_path / "browser")
    found = checks(page)
    assert {name: ok for name, (ok, _) in found.items()} == {"digests": True, "golden": True}, page
    assert "1000 of 1000 choices" in found["golden"][1]
    status = re.search(r'id="status">(\d+) of 12 customers served, load (\d+) of 20, driven ([\d.]+)', page)
    assert status, page
    # By now it is on its way, or has solved one and begun another.
    assert (int(status[1]) > 0 and float(status[3]) > 0) or "1 solved, mean length" in page, page
    assert re.search(r"<td>cost</td><td>4.750</td>", page)
