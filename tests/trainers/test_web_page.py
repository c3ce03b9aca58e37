"""An exported page in a real browser computes what PyTorch computes, plays by the rules, and says what is wrong."""

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
from torchyard_trainers.vecrl import params
from torchyard_trainers.vecrl.task import VecRL

pytestmark = pytest.mark.e2e

SNAKE = {"environment": "snake", "grid": 8, "agents": 3, "food": 3, "view": 5, "width": 32}


def exported(folder, form="web", **given):
    """An export of a policy whose weights are random but whose choices are not: scores far apart."""
    settings = params.resolve_params(given, Parallelism())
    work = VecRL(settings)
    model = work.build()
    with torch.no_grad():
        model.actor[-1].weight.mul_(100)
        if settings.normalize_observations:
            model.actor[0].shift.copy_(torch.linspace(-0.1, 0.1, len(model.actor[0].shift)))
            model.actor[0].scale.copy_(torch.linspace(1, 20, len(model.actor[0].scale)))
    world = World(0, 1, 0, torch.device("cpu"), grouped=False)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    session = Session(
        Parallel("single", model, model), Precision("fp32", world.device, sharded=False), world, reporter, None
    )
    facts = {"step": 3, "metrics": {"evalReturn": 12.5}}
    export(lambda: VecRL(settings), session, folder, [form], facts, verify=True)
    return folder / "export" / form


@pytest.fixture
def opened(tmp_path):
    return lambda folder: open_page(folder, tmp_path / "browser")


@pytest.mark.parametrize("form", ["onnx", "pt2"])
@pytest.mark.parametrize(
    "given",
    [
        {"normalizeObservations": True},
        {"environment": "CartPole-v1"},  # which has no page
        SNAKE,
        SNAKE | {"model": "cnn", "policies": "independent"},
    ],
)
def test_a_vecrl_policy_is_exported_as_a_graph(tmp_path, form, given):
    if form == "onnx":
        pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install torchyard[export]")
    manifest = json.loads((exported(tmp_path, form, **given) / "manifest.json").read_text())
    assert manifest["verified"]["policy"]["sameChoices"] >= 0.999
    assert manifest["programs"]["policy"]["inputs"]["observation"]["shape"][0] == "cases"


@needs_browser
@pytest.mark.parametrize(
    ("given", "observations"),
    [
        ({"environment": "cartpole"}, 1000),
        ({"environment": "cartpole", "normalizeObservations": True}, 1000),
        ({"environment": "bandit"}, 1000),
        (SNAKE, 1002),  # 334 boards of 3 snakes
        (SNAKE | {"policies": "independent"}, 1002),
        (SNAKE | {"model": "cnn"}, 1002),
        (SNAKE | {"model": "cnn", "policies": "independent", "view": 8}, 1002),
    ],
    ids=["cartpole", "normalized", "bandit", "snake", "independent", "cnn", "independent-cnn"],
)
def test_the_browser_chooses_as_pytorch_on_a_thousand_observations_and_plays_by_the_rules(
    tmp_path, opened, given, observations
):
    folder = exported(tmp_path, **given)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    page = opened(folder)
    found = checks(page)
    assert {name: ok for name, (ok, _) in found.items()} == {"digests": True, "golden": True, "environment": True}, page
    assert f"{observations} of {observations} choices" in found["golden"][1]
    assert "64 of 64 steps" in found["environment"][1]
    assert int(re.search(r'id="status">step (\d+)', page)[1]) > 0  # it plays
    assert re.search(r"<td>evalReturn</td><td>12.50</td>", page)


@needs_browser
def test_a_page_with_other_weights_than_the_exported_ones_fails_its_check(tmp_path, opened):
    folder = exported(tmp_path, environment="cartpole")
    weights = torch.frombuffer(bytearray((folder / "weights.bin").read_bytes()), dtype=torch.float32)
    (folder / "weights.bin").write_bytes((-weights).numpy().tobytes())
    found = checks(opened(folder))
    assert [found[name][0] for name in ("digests", "golden", "environment")] == [False, False, True]


@needs_browser
def test_a_page_with_other_rules_of_the_game_fails_its_check(tmp_path, opened):
    folder = exported(tmp_path, **SNAKE)
    rules = (folder / "world.js").read_text()
    assert "START_LENGTH] = [grid * grid, 3]" in rules
    (folder / "world.js").write_text(rules.replace("[grid * grid, 3]", "[grid * grid, 4]"))
    found = checks(opened(folder))
    assert [found[name][0] for name in ("digests", "golden", "environment")] == [True, True, False]


@needs_browser
def test_a_page_without_its_files_says_what_is_missing(tmp_path, opened):
    folder = exported(tmp_path, environment="bandit")
    (folder / "golden.bin").unlink()
    assert "golden.bin: HTTP 404" in opened(folder)


@needs_browser
def test_a_page_plays_while_it_compares_itself_with_pytorch(tmp_path, opened):
    folder = exported(tmp_path, environment="bandit")
    script = (folder / "play.js").read_text()
    begin = "compute({ observation }) {"
    assert begin in script
    seen = 'document.body.dataset.seen = document.getElementById("status").textContent;'
    (folder / "play.js").write_text(script.replace(begin, f"{begin} {seen}"))
    page = opened(folder)
    assert re.search(r'<body data-seen="step \d+', page), page
    assert checks(page)["golden"][0]


@needs_browser
@pytest.mark.parametrize("name", ["weights.bin", "golden.bin"])
def test_a_page_whose_files_were_cut_short_says_which(tmp_path, opened, name):
    folder = exported(tmp_path, environment="cartpole")
    (folder / name).write_bytes((folder / name).read_bytes()[:-1000])
    assert f"{name} was cut short" in opened(folder)
