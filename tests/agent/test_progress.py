"""Progress without a word of code: counted optimizer steps, Hugging Face's own callback, patterns, `report`."""

import importlib.util
import json
import re
import sys
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.support.waiting import DEADLINE

pytestmark = pytest.mark.e2e

TRAIN = """
import os, time
import torch
model = torch.nn.Linear(2, 1)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters())]
for step in range(int(os.environ.get("STEPS", "12"))):
    model(torch.ones(1, 2)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    time.sleep(float(os.environ.get("PAUSE", "0.05")))
"""


def last(ended_pod):
    return ended_pod.intake.state(ended_pod.name)["reports"][0]


def test_optimizer_steps_of_an_unmodified_script_are_counted_with_their_rate(node, script):
    node.run(program=script(TRAIN), env={"STEPS": "1000", "PAUSE": "0.02"})
    report = node.reported(lambda report: report.get("throughput"))
    assert (report["round"], report["rank"], report["localRank"], report["phase"]) == (node.round, 0, 0, "step")
    assert report["step"] > 0
    assert report["counter"] in {2 * report["step"], 2 * report["step"] - 1}
    assert 0 < report["throughput"]["stepsPerSecond"] < 50, "a step takes 20 ms at least"
    text = node.get("/metrics")
    assert re.search(r'^torchyard_step\{rank="0"\} \d+$', text, re.MULTILINE)
    assert 'torchyard_agent_state{state="running"} 1' in text


def test_two_optimizers_that_step_together_are_one_step_and_the_last_step_is_reported(node, script):
    node.run(procs=2, program=script(TRAIN))
    assert node.ended()["code"] == 0
    first, second = node.intake.state(node.name)["reports"]
    assert first["step"] == second["step"] == 12
    assert "throughput" not in second


def test_what_the_first_step_of_an_optimizer_imports_is_there_when_the_next_round_starts(node, script):
    node.run(program=script(TRAIN + "raise SystemExit(1)\n"), env={"STEPS": "1", "PAUSE": "0"})
    assert node.ended()["code"] == 1
    node.run(program=script("import sys, torch\nprint('torch._dynamo' in sys.modules)\n"))
    assert node.ended()["code"] == 0
    assert node.log() == "True\n"


def test_a_cold_worker_is_counted_and_the_users_own_sitecustomize_still_runs(pod, script, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'still here'\n")
    program = script("print(mine)\n" + TRAIN)
    one = pod(sys.executable, program, PYTHONPATH=str(own))
    one.ready()
    one.run()
    assert one.ended()["code"] == 0
    assert one.log().startswith("still here\n")
    assert last(one)["step"] == 12


def test_hooks_can_be_turned_off(node, script):
    node.run(program=script(TRAIN), env={"TORCHYARD_HOOKS": "0"})
    assert node.ended()["code"] == 0
    assert node.intake.state(node.name)["reports"] == []
    assert not list(node.run_dir.glob("stacks.*"))


def test_hooks_turned_off_for_the_pod_leave_no_trace_in_its_workers(pod, script):
    one = pod(sys.executable, script("import sys\nprint(sys.path)\n"), TORCHYARD_HOOKS="0")
    one.ready()
    one.run()
    assert one.ended()["code"] == 0
    assert str(one.run_dir / "hooks") not in one.log()
    assert not list(one.run_dir.glob("stacks.*"))


def test_a_trainer_that_writes_its_own_report_silences_the_counter(node, script):
    program = """
import json, os
def own(step):
    path = os.path.join(os.environ["TORCHYARD_RUN_DIR"], "report.0.json")
    with open(path + ".new", "w") as file:
        number = int(os.environ["TORCHYARD_ROUND"])
        json.dump({"round": number, "rank": 0, "step": step, "metrics": {"cost": 4.5}}, file)
    os.replace(path + ".new", path)
"""
    before, after = "own(1000)\n", "own(1001)\ntime.sleep(1.5)\n"
    node.run(program=script(program + before + TRAIN + after))
    assert node.ended()["code"] == 0
    assert (last(node)["step"], last(node)["metrics"]) == (1001, {"cost": 4.5})


def test_report_of_a_script_is_shown_whole(node, script):
    program = (
        "from torchyard_agent import report\n"
        + TRAIN
        + ("    report(step=500 + step, total_steps=600, epoch=0.5, loss=0.25, bad=float('nan'))\n")
    )
    node.run(program=script(program))
    assert node.ended()["code"] == 0
    report = last(node)
    assert (report["step"], report["totalSteps"], report["epoch"], report["counter"]) == (511, 600, 0.5, 12)
    assert report["metrics"] == {"loss": 0.25}
    assert report["nonFiniteMetrics"] == {"bad": {"value": "NaN", "step": 500}}


def test_metric_patterns_match_the_output_of_any_program(pod, tmp_path):
    pattern = r"step (?P<step>\d+)/(?P<total_steps>\d+) loss=(?P<loss>[\d.eE+-]+)"
    one = pod(
        "sh",
        "-c",
        "echo 'step 41/100 loss=1.5'; echo 'step 42/100 loss=1.25e-1'",
        TORCHYARD_METRIC_PATTERNS=json.dumps([pattern]),
        TORCHYARD_CHECKPOINT_DIR=str(tmp_path / "checkpoints"),
        TORCHYARD_CURVES="jsonl",
    )
    one.ready()
    one.run()
    one.ended()
    report = last(one)
    assert (report["step"], report["totalSteps"], report["metrics"]) == (42, 100, {"loss": 0.125})
    stored = (tmp_path / "checkpoints" / "metrics.jsonl").read_text()
    assert stored == '{"step": 41, "loss": 1.5}\n{"step": 42, "loss": 0.125}\n'


def test_metrics_of_a_program_without_steps_count_matching_lines(pod):
    one = pod("sh", "-c", "echo loss=3; echo other; echo loss=2", TORCHYARD_METRIC_PATTERNS='["loss=(?P<loss>.*)"]')
    one.ready()
    one.run()
    one.ended()
    assert (last(one)["step"], last(one)["metrics"]) == (2, {"loss": 2.0})


def test_a_new_checkpoint_is_reported_at_once(node, script):
    node.intake.interval = 300.0
    program = (
        "import time\nfrom torchyard_agent import report\nreport(step=1)\ntime.sleep(1.2)\n"
        "report(step=2, checkpoint_step=2)\ntime.sleep(600)\n"
    )
    try:
        node.run(program=script(program))
        # Sooner than the interval by far, or the wait ends with an error.
        node.reported(lambda report: report.get("checkpoint", {}).get("step") == 2)
    finally:
        node.intake.interval = 0.5


def test_a_checkpoint_is_reported_although_the_program_is_killed_right_after(node, script):
    program = (
        "import os\nfrom torchyard_agent import report\nreport(step=1)\nreport(step=2, checkpoint_step=2)\n"
        "report(step=3, loss=0.5)\nos.kill(os.getpid(), 9)\n"
    )
    node.run(program=script(program))
    assert node.ended()["code"] != 0
    assert last(node)["checkpoint"]["step"] == 2


def test_progress_calls_without_the_token_or_of_the_wrong_form_are_refused(node):
    url = f"http://127.0.0.1:{node.port()}/v1/progress"
    token = (node.run_dir / "progress.token").read_text()
    for headers, body, code in (
        ({}, b"{}", 401),
        ({"Authorization": "Bearer wrong"}, b"{}", 401),
        ({"Authorization": f"Bearer {token}"}, b"not json", 400),
        ({"Authorization": f"Bearer {token}"}, b"[]", 400),
        ({"Authorization": f"Bearer {token}"}, b" " * 70_000, 413),
    ):
        with pytest.raises(HTTPError) as error:
            urlopen(Request(url, data=body, headers=headers), timeout=DEADLINE)
        assert error.value.code == code


def test_a_stock_lightning_trainer_reports_steps_metrics_and_checkpoints_over_restarts(node, script, tmp_path):
    program = """
import os
import pickle
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset
class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
    def training_step(self, batch, _):
        (x,) = batch
        loss = (self.line(x) - x).square().mean()
        self.log("train/loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)  # which keeps no count of its steps
saves = ModelCheckpoint(dirpath=os.environ["TORCHYARD_CHECKPOINT_DIR"], save_last=True, every_n_train_steps=8)
trainer = lightning.Trainer(accelerator="cpu", max_epochs=2, accumulate_grad_batches=2, log_every_n_steps=5,
    callbacks=[saves], logger=False, enable_progress_bar=False, enable_model_summary=False)
if "DIES" in os.environ:
    class Dies(lightning.Callback):
        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step == 9:
                raise RuntimeError("lost")
    trainer.callbacks.append(Dies())
class Spawns(lightning.Callback):
    def on_train_start(self, trainer, _):
        copied = pickle.loads(pickle.dumps(trainer.callbacks))  # as strategies that spawn processes do
        assert [type(each) for each in copied] == [type(each) for each in trainer.callbacks], copied
trainer.callbacks.append(Spawns())
trainer.fit(Line(), DataLoader(TensorDataset(torch.rand(24, 1))), ckpt_path="last")
"""
    env = {"TORCHYARD_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    node.run(program=script(program), env={**env, "DIES": "1"})
    assert node.ended()["code"] == 1
    report = last(node)
    assert (report["step"], report["totalSteps"], report["checkpoint"]["step"]) == (9, 24, 8)
    assert report["metrics"]["train/loss"] >= 0
    node.run(program=script(program), env=env)
    assert node.ended()["code"] == 0
    report = last(node)
    assert (report["step"], report["totalSteps"], report["checkpoint"]["step"]) == (24, 24, 24)


@pytest.mark.skipif(not importlib.util.find_spec("accelerate"), reason="no accelerate: pip install torchyard[trainers]")
def test_stock_hugging_face_trainers_of_a_program_report_step_total_and_loss_by_themselves(node, script):
    program = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return {"input_ids": torch.arange(8), "labels": torch.arange(8)}
config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
for steps in (4, 26):
    arguments = TrainingArguments(output_dir="out", max_steps=steps, logging_steps=1, use_cpu=True, save_strategy="no",
        disable_tqdm=True)
    Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Data()).train()
"""
    node.run(program=script(program))
    assert node.ended()["code"] == 0
    report = last(node)
    assert (report["step"], report["totalSteps"]) == (30, 30)
    assert report["metrics"]["loss"] > 0
    assert report["metrics"]["learning_rate"] >= 0
