"""`torchyard init` writes a valid job file for any script, without running it."""

import ast
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.conftest import EXAMPLES

from torchyard.api.validation.validate import validate_bytes
from torchyard.client.scaffold.job_file import job_file
from torchyard.client.scaffold.options import Option
from torchyard.client.scaffold.summary import Framework, summary_of

ARGPARSE = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("-l", "--lr", type=float, default=1e-3, help="rate of the optimizer: 1 # 2")
parser.add_argument("--data", required=True)
parser.add_argument("--amp", action="store_true")
parser.add_argument("model")
torch.distributed.init_process_group()
device = "cuda:0"
"""
CLICK = """
import click
from lightning import Trainer
@click.command()
@click.option("--lr", default=0.1)
@click.option("--shuffle/--no-shuffle", default=True)
@click.argument("data")
def main(lr, shuffle, data):
    Trainer(max_steps=1)
"""
TYRO = """
import tyro
from dataclasses import dataclass, field
from accelerate import Accelerator
@dataclass
class Config:
    data_path: str
    lr: float = -1.5
    seeds: list = field(default_factory=list)
tyro.cli(Config); Accelerator()
"""
DATACLASSES = """
from dataclasses import dataclass, field
import transformers
@dataclass
class Arguments:
    model_name: str = field(metadata={"help": "which"})
    fast: bool = False
parser = transformers.HfArgumentParser((Arguments, transformers.TrainingArguments))
transformers.Seq2SeqTrainer()
"""
TYPER = """
import typer
app = typer.Typer()
@app.command()
def train(data: str, steps: int = 5, lr: float = typer.Option(0.1, help="rate")): ...
app()
"""


@pytest.mark.parametrize(
    ("source", "framework", "required", "optional"),
    [
        (ARGPARSE, Framework.TORCH, ["--data", "model"], {"--lr": "0.001", "--amp": None}),
        (CLICK, Framework.LIGHTNING, ["data"], {"--lr": "0.1", "--shuffle": "True"}),
        (TYRO, Framework.ACCELERATE, ["--data-path"], {"--lr": "-1.5", "--seeds": None}),
        (DATACLASSES, Framework.TRANSFORMERS, ["--model_name"], {"--fast": "False"}),
        (TYPER, Framework.PYTHON, ["data"], {"--steps": "5", "--lr": "0.1"}),
        (
            (EXAMPLES / "hf_train.py").read_text(),
            Framework.TRANSFORMERS,
            [],
            {"--steps": "300", "--output": "hf-output"},
        ),
    ],
    ids=["argparse", "click", "tyro", "HfArgumentParser", "typer", "example"],
)
def test_a_script_shows_its_framework_and_its_options(source, framework, required, optional):
    summary = summary_of(ast.parse(source))
    assert summary.framework == framework
    assert [each.name for each in summary.options if each.required] == required
    assert {each.name: each.default for each in summary.options if not each.required} == optional


NAME = re.compile(r"-{0,2}[a-z][\w.-]*", re.ASCII)  # others are left out
texts = st.text(max_size=120)


@settings(max_examples=40, deadline=None)
@given(
    script=st.text(min_size=1, max_size=40).filter(lambda text: "\0" not in text and text.isprintable()),
    options=st.lists(st.builds(Option, st.from_regex(NAME, fullmatch=True), st.none() | texts,
                               st.booleans(), st.booleans(), texts), max_size=4),
    framework=st.sampled_from(Framework),
    switches=st.tuples(*[st.booleans()] * 4),
    gpus=st.integers(0, 8),
)  # fmt: skip
def test_the_file_is_valid_whatever_the_script_is_called_and_says(script, options, framework, switches, gpus):
    distributed, cuda, checkpoints, reports = switches
    summary = summary_of(ast.parse(""))._replace(
        framework=framework, distributed=distributed, cuda=cuda, options=tuple(options), parser="argparse",
        checkpoints=checkpoints, reports=reports,
    )  # fmt: skip
    text = job_file(script, "train", summary, gpus, "train.yaml")
    result = validate_bytes(text.encode(), "train.yaml")
    assert not result.problems
    assert result.jobs[0].spec.command[-1] == script


def test_the_file_of_a_script_is_written_once_and_runs_the_script(torchyard):
    (torchyard.folder / "My_Script.py").write_text(ARGPARSE)
    done = torchyard("init", "My_Script.py")
    assert (done.returncode, done.stdout) == (0, "")
    assert "replace CHANGE-ME in my-script.yaml" in done.stderr
    text = (torchyard.folder / "my-script.yaml").read_text()
    assert '# - "--lr=0.001" # rate of the optimizer: 1 # 2' in text
    spec = yaml.safe_load(text)["spec"]
    assert spec["command"] == ["torchrun", "--", "My_Script.py"]
    assert spec["args"] == ["--data=CHANGE-ME", "CHANGE-ME"]
    assert torchyard("validate", "my-script.yaml").returncode == 0
    again = torchyard("init")
    assert again.returncode == 1
    assert "my-script.yaml exists; remove it" in again.stderr
    assert (torchyard.folder / "my-script.yaml").read_text() == text


def test_what_is_no_script_is_rejected_with_its_line(torchyard):
    (torchyard.folder / "train.py").write_text("x = 1\nif x\n")
    assert torchyard("init").stderr == "torchyard: train.py:2: expected ':'; correct the script\n"
    (torchyard.folder / "train.py").write_bytes(b"-" * 200_000 + b"1")
    assert "train.py cannot be parsed" in torchyard("init", "train.py").stderr
    (torchyard.folder / "train.py").write_bytes(b"#" * (2**20 + 2))
    assert "larger than 1024 KiB" in torchyard("init", "train.py").stderr
    assert "there is no such file" not in torchyard("init", "nowhere.py").stdout
    assert list(torchyard.folder.glob("*.yaml")) == []


def test_an_example_is_copied_with_its_script(torchyard):
    assert torchyard("init", "--example", "hf-trainer").returncode == 0
    assert (torchyard.folder / "hf_train.py").read_text() == (EXAMPLES / "hf_train.py").read_text()
    assert torchyard("validate", "hf-trainer.yaml").returncode == 0
