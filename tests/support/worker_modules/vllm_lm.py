"""Compares vLLM with the engine of the trainer, then trains with it in the working directory.

Runs with the packages of `hack.vllm_packages`; one process imports them for both.
"""

import gc
import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3MoeConfig

from torchyard_trainers.core.adapters import add_lora
from torchyard_trainers.core.command import main
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.world import World
from torchyard_trainers.lm import models
from torchyard_trainers.lm.generation.engine import Sampling, WeightsEngine
from torchyard_trainers.lm.generation.vllm_engine import VllmEngine, check_model, size_of
from torchyard_trainers.lm.tokens import character_tokenizer

CPU = torch.device("cpu")
PROMPTS = [[5, 6, 7, 8], [9, 10], [11, 12, 13, 14, 15, 16], [40]]


def changed(model, seed):
    """Change all weights, the frozen ones and both parts of adapters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.1 * torch.randn(each.shape, generator=generator))


def compare(*, tied):
    """Print what both engines generate before and after the weights change: tied with adapters, else neither."""
    tokenizer = character_tokenizer()
    models.PRESETS["tiny-qwen3"][1]["tie_word_embeddings"] = tied
    model = models.build_model("tiny-qwen3", tokenizer, seed=1)
    if tied:
        model.lm = add_lora(model.lm, rank=2, alpha=8.0)

    def decode(tokens):
        return tokenizer.decode(list(tokens), skip_special_tokens=True)

    size = size_of(model.lm.config, torch.float32, sequences=8, tokens=64, cache=None)
    world = World(0, 1, 0, CPU, grouped=False)
    theirs = VllmEngine(model, world, size, dtype=torch.float32, tokenizer=tokenizer, compiled=False)
    ours = WeightsEngine(model, model.lm.config, device=CPU, decode=decode)
    threads, ids, found = torch.get_num_threads(), torch.arange(4), {"greedy": [], "sampled": [], "alone": []}

    def generated(engine, sampling, chosen=slice(None)):
        completions = engine.generate(PROMPTS[chosen], ids[chosen], sampling)
        pairs = zip(completions.tokens, completions.mask, strict=True)
        return [row[mask].tolist() for row, mask in pairs], completions.stopped.tolist(), completions

    for seed in (1, 2):
        changed(model, seed)
        greedy = Sampling(24, temperature=0.0)
        plain = generated(ours, greedy)[0]
        stops = Sampling(24, temperature=0.0, stop=(decode([plain[0][6]]),), stop_tokens=(plain[1][3],))
        with theirs.on_current_weights():
            found["greedy"].append([[generated(each, way)[:2] for way in (greedy, stops)] for each in (ours, theirs)])
            warm = Sampling(24, temperature=0.7, seed=3)
            rows, _, completions = generated(theirs, warm)
            found["alone"].append((rows[2:3], generated(theirs, warm, slice(2, 3))[0]))
        scores = []
        for prompt, row in zip(PROMPTS, rows, strict=True):
            labels = torch.tensor([[-100] * (len(prompt) - 1) + row])
            tokens = torch.tensor([(prompt + row)[:-1]])
            scores.append(model(tokens, labels, scores=True, temperature=0.7).log_probability.tolist())
        found["sampled"].append((scores, [row[:24].tolist() for row in completions.sampled]))
    found["threads"] = (threads, torch.get_num_threads())
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()
    return 0


def rejections():
    """Print what is said of models that vLLM is not used for."""
    few = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    for config in (Qwen3MoeConfig(**few, head_dim=32), Qwen3Config(**few, head_dim=16)):
        try:
            check_model(config, CPU)
        except ConfigError as error:
            print(error)  # noqa: T201


CONFIG = {
    "trainer": {
        "name": "lm",
        "params": {"method": "grpo", "engine": "vllm", "reward": "shaped", "length": 2, "symbols": 6, "batch": 128}
        | {"steps": 50, "sftSteps": 25, "warmupSteps": 0, "evalSamples": 64, "evalEvery": 1000, "logEvery": 1},
    },
    "device": "cpu",
    "parallelism": {"microBatchSize": 128},
    "checkpoint": {"interval": {"steps": 10}},
}


def train(folder, dies_in):
    """Train in a folder, and die of SIGKILL in the rollout of this number; 0: in none."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    os.chdir(folder)
    rollouts, generate = itertools.count(1), VllmEngine.generate

    def dies(*arguments):
        completions = generate(*arguments)
        if next(rollouts) == dies_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return completions

    VllmEngine.generate = dies
    return main(["--config", "config.json"])


def forked(function, *arguments, **options):
    """Call a function in a forked process, which need not import anything again; return its exit code."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        code = function(*arguments, **options)
    finally:
        os._exit(code)


if __name__ == "__main__":
    torch.set_num_threads(1)
    models.PRESETS["tiny-qwen3"][1]["head_dim"] = 32  # on a CPU, vLLM has no attention for less
    rejections()
    gc.freeze()  # a collection in a fork would write to, and so copy, every page that they share
    codes = [forked(compare, tied=tied) for tied in (True, False)]
    whole, killed = Path("whole").absolute(), Path("killed").absolute()
    codes += [forked(train, whole, dies_in=0)]
    last = "checkpoints/step-00000040"
    shutil.copytree(whole / last, killed / last)  # as if it had been killed before: the steps until then are equal
    codes += [forked(train, killed, dies_in=each) for each in (3, 0)]
    assert codes == [0, 0, 0, -signal.SIGKILL, 0], codes
