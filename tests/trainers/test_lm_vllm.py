"""Rollouts by vLLM: parameters, memory, the same tokens from the same weights, learning, and resuming after a kill."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hack import vllm_packages
from hack.locked_packages import UnavailableError
from little_rl import session_of
from tests.support.waiting import DEADLINE
from tests.trainers.test_forecast_workloads import config_of, foretold
from transformers import Qwen3Config

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.lm.generation.vllm_engine import DEFAULT_CACHE, GIB, size_of
from torchyard_trainers.lm.methods.losses import importance_weights, policy_loss
from torchyard_trainers.lm.params import resolve_params
from torchyard_trainers.lm.task import LanguageModeling

MODULE = Path(__file__).parents[1] / "support" / "worker_modules" / "vllm_lm.py"
GRPO = {"method": "grpo", "engine": "vllm"}
FOUND = '{"greedy"'  # a line that the program printed of a comparison


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"engine": "vllm"}, "trainer.params.engine: is of method grpo and ppo, not sft; remove it"),
        ({"method": "ppo", "engine": "trt"}, "trainer.params.engine: 'trt' is not known"),
        ({"method": "grpo", "engineCacheGib": 2}, "engineCacheGib: 2, but trainer.params.engine is not vllm"),
        ({"method": "ppo", "importanceCap": 3}, "importanceCap: 3, but trainer.params.engine is not vllm"),
        ({**GRPO, "importanceCap": 0.5}, "trainer.params.importanceCap"),
    ],
)
def test_parameters_of_an_engine_that_contradict_others_are_rejected(params, message):
    with pytest.raises(ConfigError, match=message):
        resolve_params(params, Parallelism())


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vllm is installed: run it without (make install)")
def test_before_the_first_step_a_job_without_the_package_ends_with_one_sentence():
    work = LanguageModeling(resolve_params(GRPO, Parallelism()))
    with pytest.raises(ConfigError, match=r"engine: vllm, but the package vllm .* is not installed; add it to the"):
        work.prepare(session_of(work), 0)


def test_the_cache_holds_what_is_generated_at_once_and_at_least_one_sequence():
    config = Qwen3Config(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    block = 2 * 2 * 2 * 32 * 2 * 128  # keys and values of 128 tokens in bf16
    assert size_of(config, torch.bfloat16, sequences=3, tokens=129, cache=None).cache == 7 * block
    assert size_of(config, torch.bfloat16, sequences=10**6, tokens=4096, cache=None).cache == DEFAULT_CACHE
    assert size_of(config, torch.bfloat16, sequences=3, tokens=129, cache=3 * block).cache == 3 * block
    with pytest.raises(ConfigError, match=r"engineCacheGib: 0\.000122, but one sequence of 129 tokens takes 0\.000183"):
        size_of(config, torch.bfloat16, sequences=3, tokens=129, cache=2 * block)


def test_a_forecast_counts_the_copy_of_the_weights_and_the_cache():
    usual = {"method": "grpo", "batch": 32, "evalSamples": 8, "sftSteps": 0}
    options = {"precision": "fp32", "microBatchSize": 16}
    sizes = [
        foretold(config_of("lm", {**usual, **more}, options)).total
        for more in ({}, *({"engine": "vllm", "engineCacheGib": cache} for cache in (0.25, 0.5)))
    ]
    assert sizes[2] - sizes[1] == GIB // 4
    assert 0 < sizes[1] - sizes[0] - GIB // 4 < 2**20  # the copy of 75,000 parameters


def test_tokens_of_another_program_weigh_what_training_finds_them_more_probable():
    acted = torch.log(torch.tensor([[0.5, 0.5, 0.9], [0.25, 0.5, 1.0]]))
    sampled = torch.log(torch.tensor([[0.5, 0.4, 0.1], [0.5, 0.5, 1.0]]))
    mask = torch.tensor([[True, True, True], [True, True, False]])
    weights = importance_weights(acted, sampled, mask, cap=2.0)
    assert weights.tolist() == [[1.0, pytest.approx(1.25), 2.0], [0.5, 1.0, 0.0]]
    new, advantage, ones = acted.clone().requires_grad_(), torch.ones(2, 3), torch.ones(2)
    policy_loss(new, acted, advantage, mask, ones, low=0.2, high=0.2, correction=weights).loss.backward()
    assert new.grad.tolist() == [[-1.0, pytest.approx(-1.25), -2.0], [-0.5, -1.0, 0.0]]


@pytest.fixture(scope="module")
def packages():
    """The folder of vLLM's packages."""
    try:
        return vllm_packages.folder()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def ran(packages, tmp_path_factory):
    """What the program printed that compares both engines and trains with vLLM, and the folder of its runs."""
    folder = tmp_path_factory.mktemp("vllm")
    path = os.pathsep.join(map(str, (packages, os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [sys.executable, str(MODULE)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout, folder


@pytest.mark.e2e
def test_vllm_generates_the_same_tokens_before_and_after_weights_are_handed_over(ran):
    lines = ran[0].splitlines()
    for found in (json.loads(line) for line in lines if line.startswith(FOUND)):
        first, second = found["greedy"]
        assert first != second
        for ours, theirs in (first, second):
            assert ours == theirs
            assert sum(stopped for _, way in ours for stopped in way) >= 2
        for scores, sampled in found["sampled"]:
            assert torch.tensor(sampled).allclose(torch.tensor(scores), atol=1e-4)
        for beside_others, alone in found["alone"]:
            assert beside_others == alone
        assert found["threads"] == [1, 1]
    assert sum(line.startswith(FOUND) for line in lines) == 2, "a tied model with adapters, and one with neither"
    at = "trainer.params.engine: vllm, but "
    assert f"{at}the model is a mixture of experts (num_experts); use engine: torch" in lines
    assert f"{at}on a CPU it has no attention for heads of 16 " in "\n".join(lines)


@pytest.mark.e2e
def test_grpo_learns_with_vllm_and_after_a_kill_in_a_rollout_goes_on_with_the_same_bits(ran):
    output, folder = ran
    rewards, divergences = ([], [])
    for line in (folder / "whole" / "checkpoints" / "metrics.jsonl").read_text().splitlines():
        metrics = json.loads(line)
        if metrics["step"] > 25:
            rewards.append(metrics["reward"])
            divergences.append(metrics["engineKl"])
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1, rewards
    assert all(abs(each) < 1e-4 for each in divergences), divergences
    weights = [folder / each / "checkpoints" / "final" / "model.safetensors" for each in ("whole", "killed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert output.count("step 41/50") == 3, "of three runs the third went on from step 40"
