"""Compares vLLM with the engine of the trainer on one model; runs with the packages of `hack.vllm_packages`."""

import json
import sys

import torch

from torchyard_trainers.core.adapters import add_lora
from torchyard_trainers.core.world import World
from torchyard_trainers.lm import models
from torchyard_trainers.lm.generation import Sampling, WeightsEngine
from torchyard_trainers.lm.tokens import character_tokenizer
from torchyard_trainers.lm.vllm_engine import VllmEngine, size_of

CPU = torch.device("cpu")
PROMPTS = [[5, 6, 7, 8], [9, 10], [11, 12, 13, 14, 15, 16], [40]]


def model_of(tokenizer):
    """Return a tiny Qwen3; on a CPU, vLLM has no attention for heads of less than 32."""
    models.PRESETS["tiny-qwen3"][1]["head_dim"] = 32
    return models.build_model("tiny-qwen3", tokenizer, seed=1)


def changed(model, seed):
    """Change all weights, the frozen ones and both parts of adapters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.1 * torch.randn(each.shape, generator=generator))


def compare():
    """Return what both engines generate before and after the weights change."""
    tokenizer = character_tokenizer()
    model = model_of(tokenizer)
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
    return found


if __name__ == "__main__":
    if sys.argv[1] == "folder":
        tokenizer = character_tokenizer()
        for part in (model_of(tokenizer).lm, tokenizer):
            part.save_pretrained(sys.argv[2])
    else:
        torch.set_num_threads(1)
        sys.stdout.write("\n" + json.dumps(compare()) + "\n")
