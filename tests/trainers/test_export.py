"""Exports: each format is read back and compared; what differs is never published."""

import hashlib
import json

import pytest
import torch
from torch import nn

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError, Exit, exit_code
from torchyard_trainers.core.export import graph, publish, verify, web, weights
from torchyard_trainers.core.export.bundle import ExportBundle, prepare
from torchyard_trainers.core.export.formats import FORMATS, check_formats
from torchyard_trainers.core.export.program import Page, Program
from torchyard_trainers.core.export.verify import ExportError, UnwritableError, compare, record
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.workload import Workload
from torchyard_trainers.cvrp import params as cvrp
from torchyard_trainers.cvrp.task import Cvrp
from torchyard_trainers.vecrl import params as vecrl
from torchyard_trainers.vecrl.task import VecRL

CASES = 1000


class Scores(nn.Module):
    """What exporters find hard: a mask, attention, integers and bools beside floats."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3, 16)
        self.inputs = nn.Linear(16, 48)
        self.output = nn.Linear(16, 1)

    def forward(self, nodes, seen, steps):
        hidden = self.embed(nodes)
        queries, keys, values = self.inputs(hidden).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=~seen[:, None, None])
        scores = self.output(mixed.transpose(1, 2).flatten(2))[..., 0] + 0.01 * steps[:, None].float()
        return scores.masked_fill(seen, -torch.inf), steps + 1


@pytest.fixture
def bundle():
    torch.manual_seed(1)
    module = Scores().eval().requires_grad_(requires_grad=False)
    seen = torch.rand(CASES, 7) < 0.4
    seen[:, 0] = False
    inputs = {"nodes": torch.rand(CASES, 7, 3), "seen": seen, "steps": torch.arange(CASES)}
    program = Program(module, inputs, ("scores", "next"))
    page = Page("policy", {}, {"environment": "none"})
    facts = {"step": 12, "metrics": {"cost": 5.25}}
    return ExportBundle(module.state_dict(), {"policy": program}, {"policy": record(program)}, page, facts)


@pytest.fixture
def reporter():
    return Reporter(None, rank=0, local_rank=0, round_number=1)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_computes_what_the_model_computes_on_all_recorded_inputs(bundle, tmp_path, name):
    form = FORMATS[name]
    for package in form.packages:
        pytest.importorskip(package, reason=f"{package} is not installed: pip install torchyard[export]")
    facts = form.write(bundle, tmp_path)
    found = form.verify(bundle, tmp_path, facts)
    if name == "safetensors":
        assert found == {"tensors": len(bundle.weights)}
    else:
        assert found["policy"]["cases"] == CASES
        assert found["policy"]["largestDifference"] <= verify.TOLERANCE
        assert found["policy"]["sameChoices"] >= verify.SAME_CHOICES


@pytest.mark.parametrize(
    ("write", "verify"), [(graph.write_onnx, graph.verify_onnx), (graph.write_pt2, graph.verify_pt2)]
)
def test_a_graph_of_other_weights_does_not_pass(bundle, tmp_path, write, verify):
    if write is graph.write_onnx:
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install torchyard[export]")
    write(bundle, tmp_path)
    with torch.no_grad():
        bundle.programs["policy"].module.output.weight.mul_(1.01)
    changed = bundle._replace(expected={"policy": record(bundle.programs["policy"])})
    with pytest.raises(ExportError, match="policy: the reloaded export differs"):
        verify(changed, tmp_path)


def test_one_changed_bit_of_the_weights_does_not_pass(bundle, tmp_path):
    weights.write(bundle, tmp_path)
    file = tmp_path / weights.FILE
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ExportError, match="read back differently than written"):
        weights.verify(bundle, tmp_path)


def test_weights_of_a_page_that_were_cut_short_do_not_pass(bundle, tmp_path):
    facts = web.write(bundle, tmp_path)
    file = tmp_path / web.WEIGHTS
    data = bytearray(file.read_bytes())
    data[: len(data) // 2] = bytes(len(data) // 2)
    file.write_bytes(data)
    with pytest.raises(ExportError, match="web policy"):
        web.verify(bundle, tmp_path, facts)


def test_a_page_is_small_or_not_written(bundle, tmp_path):
    (tmp_path / "page").mkdir()
    large = tmp_path / "large.js"
    large.write_bytes(b" " * web.MAX_BYTES)
    page = bundle.page._replace(files={"play.js": large})
    with pytest.raises(ExportError, match=r"play\.js has 1000000") as refused:
        web.write(bundle._replace(page=page), tmp_path / "page")
    assert exit_code(refused.value) is Exit.CONFIG, "it would be too large again"


WORKS = {
    "cvrp": lambda **given: Cvrp(cvrp.resolve_params(given, Parallelism())),
    "vecrl": lambda **given: VecRL(vecrl.resolve_params(given, Parallelism())),
}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("cvrp", {"baseline": "critic"}),
        ("cvrp", {"model": "dgt", "customers": 7}),
        ("vecrl", {}),
        ("vecrl", {"environment": "snake", "agents": 3, "policies": "independent", "width": 32}),
    ],
)
def test_the_size_of_a_page_is_known_to_the_byte_before_anything_is_learned(tmp_path, name, given):
    work = WORKS[name](**given)
    bundle = prepare(work, work.build().state_dict(), {}, programs=True, page=True)
    web.write(bundle, tmp_path)
    written = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    work = WORKS[name](**given)
    model = work.build().eval()
    program = work.programs(model, 1)["policy"]
    assert web.sizes(work.page(), program, record(program)) == written


@pytest.mark.parametrize(
    ("name", "given", "complaint"),
    [
        (
            "cvrp",
            {"preset": "cvrp20"},
            r"315\d{4} bytes, at most 1000000 .*weights.bin has 2770432: make trainer\.params\.embedding \(or layers",
        ),
        ("cvrp", {"customers": 100}, r"golden.bin has 1725000: make trainer\.params\.customers smaller"),
        (
            "vecrl",
            {"preset": "large", "environment": "snake"},
            r"190\d{4} bytes.*golden.bin has 1614000: make trainer\.params\.view smaller",
        ),
    ],
)
def test_a_page_that_will_be_too_large_is_refused_before_anything_is_trained(name, given, complaint):
    work = WORKS[name](**given)
    check_formats(work, ["safetensors", "onnx", "pt2"])
    with pytest.raises(ConfigError, match=r"export\.formats: .*" + complaint):
        check_formats(work, ["safetensors", "web"])


class Branches(nn.Module):
    """What no exporter can follow: which way it goes depends on the values."""

    def forward(self, x):
        return x + 1 if bool(x.sum() > 0) else x


def test_a_model_that_is_no_graph_is_not_tried_again_but_a_full_disk_is(bundle, tmp_path, monkeypatch):
    program = Program(Branches().eval(), {"x": torch.rand(CASES, 2)}, ("y",))
    branching = bundle._replace(programs={"policy": program}, expected={"policy": record(program)})
    with pytest.raises(ExportError, match=r"export\.formats: pt2: policy cannot be written as a graph") as refused:
        graph.write_pt2(branching, tmp_path)
    assert exit_code(refused.value) is Exit.CONFIG

    def full(*_given):
        raise RuntimeError("PytorchStreamWriter failed writing file data.pkl")

    monkeypatch.setattr(torch.export, "save", full)
    with pytest.raises(ExportError, match="the graph cannot be saved") as refused:
        graph.write_pt2(bundle, tmp_path)
    assert not isinstance(refused.value, UnwritableError)
    assert exit_code(refused.value) is Exit.USER_ERROR


def test_what_a_browser_reads_is_where_the_manifest_says(tmp_path):
    tensors = {
        "bias": torch.tensor([1.5, -2.0, 0.25]),
        "seen": torch.tensor([[True, False]]),
        "node": torch.tensor(2**31 - 1),
        "none": torch.empty(0, 4),
    }
    index = web.pack(tensors, tmp_path / "w")
    assert [(each["dtype"], each["shape"], each["offset"]) for each in index] == [
        ("float32", [3], 0),
        ("uint8", [1, 2], 16),
        ("int32", [], 24),
        ("float32", [0, 4], 32),
    ]
    assert (tmp_path / "w").read_bytes()[:12] == bytes.fromhex("0000c03f000000c00000803e")
    found = web.unpack(tmp_path / "w", index)
    assert all(torch.equal(found[name], tensor.to(found[name].dtype)) for name, tensor in tensors.items())


def outputs_of(*found):
    return lambda _inputs: list(found)


@pytest.mark.parametrize(
    ("want", "got", "passes"),
    [
        (torch.tensor([[1.0, -torch.inf]]), torch.tensor([[1.0, -torch.inf]]), True),
        (torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, torch.nan]]), False),
        (torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, torch.inf]]), False),
        (torch.tensor([[1e6, 2.0]]), torch.tensor([[1e6 + 50, 2.0]]), True),
        (torch.tensor([[1e6, 2.0]]), torch.tensor([[1e6 + 500, 2.0]]), False),
        (torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5002]), False),
        (torch.tensor([[0.5, 0.50001]]), torch.tensor([[0.50001, 0.5]]), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (torch.tensor([1, 2]), torch.tensor([1.0, 2.0]), False),
        (torch.tensor([[1.0]]), torch.tensor([1.0]), False),
    ],
)
def test_an_export_passes_only_if_its_outputs_are_those_of_the_model(want, got, passes):
    program = Program(nn.Identity(), {"x": want}, ("y",))
    if passes:
        compare("onnx policy", program, [want], outputs_of(got))
    else:
        with pytest.raises(ExportError):
            compare("onnx policy", program, [want], outputs_of(got))


def test_published_files_are_described_byte_for_byte(bundle, tmp_path, reporter):
    for step in (12, 24):
        publish._publish(
            bundle._replace(facts={"step": step, "metrics": {"cost": 5.25}}), "pt2", tmp_path, reporter, verify=True
        )
    folder = tmp_path / "export" / "pt2"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["step"], manifest["metrics"]) == (24, {"cost": 5.25})
    assert manifest["programs"]["policy"]["inputs"]["nodes"] == {"dtype": "float32", "shape": ["cases", 7, 3]}
    data = (folder / "policy.pt2").read_bytes()
    assert manifest["files"] == {"policy.pt2": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
    assert sorted(path.name for path in folder.parent.iterdir()) == ["pt2"]
    told = {each["name"]: each.get("verified") for each in reporter.facts["artifacts"]}
    assert told == {"export/pt2/policy.pt2": True, "export/pt2/manifest.json": True}


def test_what_does_not_pass_is_not_published_and_the_former_version_stays(bundle, tmp_path, reporter):
    publish._publish(bundle, "pt2", tmp_path, reporter, verify=True)
    before = (tmp_path / "export" / "pt2" / "manifest.json").read_bytes()
    wrong = bundle._replace(expected={"policy": tuple(each + 1 for each in bundle.expected["policy"])})
    with pytest.raises(ExportError):
        publish._publish(wrong, "pt2", tmp_path, reporter, verify=True)
    assert (tmp_path / "export" / "pt2" / "manifest.json").read_bytes() == before


def test_a_format_whose_packages_are_missing_says_what_to_install(monkeypatch):
    class Offers(Workload):
        def programs(self, model, cases): ...

    monkeypatch.setitem(FORMATS, "onnx", FORMATS["onnx"]._replace(packages=("torch", "no_such_package")))
    check_formats(Offers(), ["safetensors", "pt2"])
    with pytest.raises(ConfigError, match=r"needs no_such_package.*torchyard\[export\]"):
        check_formats(Offers(), ["onnx"])
    with pytest.raises(ConfigError, match="web is not offered by this workload; use safetensors, onnx, pt2"):
        check_formats(Offers(), ["web"])
