"""`torchyard plan`: a forecast for people and for programs, without a GPU and without starting anything."""

import json
import re
from pathlib import Path

import pytest

from torchyard.api.launch import trainer_config
from torchyard.cli.commands import plan
from torchyard.cli.main import main
from torchyard.client import trainers
from torchyard.client.files import job_of
from torchyard_trainers.core.config import load
from torchyard_trainers.core.memory.plan import plan as forecast
from torchyard_trainers.lm import models
from torchyard_trainers.lm.models import PRESETS as MODELS

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = """
apiVersion: torchyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: planned}
spec:
  trainer: {name: cvrp, params: {customers: 3, embedding: 16, heads: 2, layers: 1}}
  nodes: 2
  procsPerNode: 2
  parallelism: {strategy: ddp, microBatchSize: 4}
"""


@pytest.fixture
def job(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def test_a_real_forecast_says_what_fits(job, capsys):
    assert main(["plan", str(job), "--gpu", "h100-80gb", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["job"]["strategy"], found["job"]["fits"]) == (4, "ddp", True)


@pytest.mark.usefixtures("warm_trainers")
def test_a_micro_batch_has_no_more_samples_than_a_rank_takes_in_a_step(job, capsys):
    assert main(["plan", str(job), "--gpu", "1200Mi", "--set", "trainer.params.batch=8"]) == 0
    assert "micro-batches of 2, 1 a step" in capsys.readouterr().out


@pytest.mark.usefixtures("warm_trainers")
def test_a_gpu_without_bf16_is_planned_in_what_the_job_computes_in_there(job, capsys):
    assert main(["plan", str(job), "--gpu", "v100-32gb", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["precision"] == "fp32"
    assert main(["plan", str(job), "--gpu", "T4-16GB", "--set", "parallelism.precision=bf16"]) == 64
    assert "precision: bf16, but this GPU does not support it; use fp16 or fp32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("moment", "advice"),
    [
        ("evaluation between steps", "evaluate less at once (trainer.params.evalBatch or evalEpisodes)"),
        ("rollout before a step", "generate less at once (trainer.params.rolloutBatch or maxNewTokens)"),
    ],
)
def test_what_does_not_fit_outside_of_a_step_is_named_with_what_to_change(moment, advice):
    sizes = dict.fromkeys(("parameters", "gradients", "optimizer", "activations", "buffers", "host", "total"), 0)
    job = {
        "strategy": "ddp", "precision": "fp32", "microBatchSize": 4, "accumulation": 1,
        "activationCheckpointing": "none", "cpuOffload": False, "bytes": sizes,
        "peak": moment, "fits": False,
    }  # fmt: skip
    said = plan.forecast_text({"job": job, "ranks": 2, "change": None, "room": 1 << 30}, "T4-16GB")
    assert f"This is the peak, in the {moment}." in said
    assert advice in said


def test_what_does_not_fit_is_named_with_the_cheapest_change(job, capsys, monkeypatch):
    sizes = {"parameters": 30 * plan.GIB, "gradients": 0, "optimizer": 60 * plan.GIB, "activations": 0, "host": 0}
    sizes["total"] = 90 * plan.GIB
    way = {
        "strategy": "ddp",
        "precision": "bf16",
        "activationCheckpointing": "none",
        "cpuOffload": False,
        "microBatchSize": 4,
        "accumulation": 2,
        "bytes": sizes,
        "peak": "forward pass",
        "fits": False,
    }
    change = {**way, "strategy": "fsdp", "fits": True, "set": {"parallelism.strategy": "fsdp"}}
    found = {"ranks": 4, "room": 70 * plan.GIB, "job": way, "change": change}
    monkeypatch.setattr(plan, "forecast", lambda *_, **__: found)
    assert main(["plan", str(job), "--gpu", "H100-80GB"]) == 1
    text = capsys.readouterr().out
    assert "It does not fit H100-80GB: of its memory 70.0 GiB can hold tensors." in text
    assert "--set parallelism.strategy=fsdp" in text
    found["change"] = None
    assert main(["plan", str(job), "--gpu", "80Gi"]) == 1
    assert "use more GPUs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gradients", "moment"),
    [
        (0, "the peak of a step, in the backward pass: gradients come later, when activations are freed."),
        (2**30, "This is the peak of a step, in the backward pass."),
    ],
)
def test_every_part_of_the_memory_is_listed_with_when_it_is_needed(job, capsys, monkeypatch, gradients, moment):
    sizes = {"parameters": 2**30, "gradients": gradients, "optimizer": 2**31, "activations": 0, "buffers": 0, "host": 0}
    way = {
        "strategy": "single",
        "precision": "fp32",
        "activationCheckpointing": "none",
        "cpuOffload": False,
        "microBatchSize": 4,
        "accumulation": 2,
        "bytes": {**sizes, "total": sum(sizes.values())},
        "peak": "backward pass",
        "fits": None,
    }
    monkeypatch.setattr(plan, "forecast", lambda *_, **__: {"ranks": 1, "room": None, "job": way, "change": None})
    assert main(["plan", str(job)]) == 0
    text = capsys.readouterr().out
    assert re.findall(r"^  (\w+) ", text, re.MULTILINE) == [
        "parameters",
        "gradients",
        "optimizer",
        "activations",
        "total",
    ]
    assert moment in text


OF_TRAINERS = [
    file for file in sorted(EXAMPLES.glob("*.yaml")) if re.search(r"\n  trainer:\s+name: \w+\n", file.read_text())
]
WITH_RECORDINGS = {"own-robot"}  # which a command of its first lines writes


@pytest.mark.parametrize(
    "example", [file for file in OF_TRAINERS if file.stem not in WITH_RECORDINGS], ids=lambda file: file.stem
)
def test_every_shipped_example_of_a_built_in_trainer_can_be_planned(example, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    assert forecast_of(example, tmp_path, "H100-80GB")["job"]["fits"] is True


def forecast_of(example, folder, gpu):
    """Plan in this process, since to import torch takes longer than most of these forecasts."""
    file, job = folder / "config.json", job_of(example, [])
    file.write_text(json.dumps(trainer_config(job, str)))
    procs = max(1, job.spec.gpus_per_node) if job.spec.procs_per_node == "auto" else job.spec.procs_per_node
    memory = plan.bytes_of(gpu) if gpu is not None else None
    return json.loads(forecast(load(file), ranks=job.spec.nodes * procs, local=procs, memory=memory))


@pytest.mark.parametrize(
    ("name", "gpu", "expected"),
    [  # ranks, strategy, precision, shards
        ("one-gpu", "H100-80GB", (1, "single", "bf16", 1)),
        ("ddp-one-node", "H100-80GB", (8, "ddp", "bf16", 1)),
        ("fsdp-70b", "H100-80GB", (64, "fsdp", "bf16", 64)),
        ("two-nodes", "H100-80GB", (16, "hsdp", "bf16", 8)),  # sharded inside of a node
        ("some-gpus", "RTX4090-24GB", (4, "ddp", "bf16", 1)),
        ("cpu", None, (2, "ddp", "fp32", 1)),
    ],
)
def test_each_scenario_is_planned_with_its_machines(name, gpu, expected, tmp_path, monkeypatch):
    """Of each model one layer, since all layers are alike: the time of a forecast grows with their number."""
    ranks, strategy, precision, shards = expected
    shallow = {model: (kind, {**sizes, "num_hidden_layers": 1}) for model, (kind, sizes) in MODELS.items()}
    monkeypatch.setattr(models, "PRESETS", shallow)
    found = forecast_of(EXAMPLES / "lm" / f"{name}.yaml", tmp_path, gpu)
    job, sizes = found["job"], found["job"]["bytes"]
    assert (found["ranks"], job["strategy"], job["precision"]) == (ranks, strategy, precision)
    assert job["fits"] is (None if gpu is None else True)
    # Masters of four bytes, and two moments as large; a gradient is there once it was computed.
    assert sizes["parameters"] == pytest.approx(4 * found["parameters"] / shards, rel=0.01)
    assert sizes["optimizer"] == pytest.approx(2 * sizes["parameters"], rel=0.01)
    assert found["how"] == "a step of shapes"


def test_a_shipped_custom_workload_can_be_planned(capsys):
    assert main(["plan", str(EXAMPLES / "chars.yaml"), "--gpu", "H100-80GB", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["fits"] is True


@pytest.mark.usefixtures("warm_trainers")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--gpu", "0"], "--gpu: 0 is not a positive size; give the size of a GPU, such as 24Gi"),
        (["--gpu", "1Gi"], "--gpu: a GPU of 1024 MiB has no room for tensors, since a CUDA context and NCCL take 1024"),
        (["--gpu", "H100"], "H100 is not a known GPU; use T4-16GB"),
        (["--set", "trainer.params.customers=0"], "customers"),
        (["--set", "parallelism.cpuOffload=true"], "cpuOffload"),
    ],
)
def test_what_cannot_be_planned_is_refused(job, capsys, words, says):
    assert main(["plan", str(job), *words]) == 64
    assert says in capsys.readouterr().err


def test_a_custom_program_has_no_step_that_is_known(tmp_path, capsys):
    file = tmp_path / "job.yaml"
    file.write_text(re.sub("trainer: .*", 'script: "1"', JOB))
    assert main(["plan", str(file)]) == 64
    assert "runs a program of its own" in capsys.readouterr().err


def test_parts_of_the_users_are_searched_beside_the_job_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = job_of(EXAMPLES / "own-problem.yaml", [])
    answer = trainers.ask(job, "plan", "--world", "1", "--local", "1", folder=EXAMPLES)
    assert json.loads(answer)["job"]["fits"] is None
