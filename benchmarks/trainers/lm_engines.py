"""Tokens per second of rollouts: the trainer's own engine and vLLM, on the same weights in one process.

    python benchmarks/trainers/lm_engines.py [--completions 32] [--tokens 64] [--rounds 3] [--device cuda]

Without vLLM in the environment, the packages of tests are installed into the cache and used (CPU only). The rounds of
both engines alternate; greedy tokens must be the same.
"""

import argparse
import os
import statistics
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from torchyard_trainers.core.world import World
from torchyard_trainers.lm.generation.engine import Sampling, WeightsEngine
from torchyard_trainers.lm.generation.vllm_engine import VllmEngine, size_of
from torchyard_trainers.lm.models import LanguageModel


def main() -> None:
    """Print the median of both engines and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--completions", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    if find_spec("vllm") is None:
        sys.path.insert(0, str(Path(__file__).parents[2]))
        from hack import vllm_packages

        path = os.pathsep.join(map(str, (vllm_packages.folder(), os.environ.get("PYTHONPATH", ""))))
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONPATH": path})
    device = torch.device(options.device)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=8192,
        hidden_size=options.width,
        intermediate_size=3 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.width // 64,
        num_key_value_heads=max(options.width // 128, 1),
        head_dim=64,
        tie_word_embeddings=True,
    )
    model = LanguageModel(Qwen3ForCausalLM(config)).to(device)
    prompts = torch.randint(0, 8192, (options.completions, 24)).tolist()
    size = size_of(config, torch.float32, sequences=options.completions, tokens=24 + options.tokens, cache=None)
    world = World(0, 1, 0, device, grouped=False)
    engines = {
        "torch": WeightsEngine(model, config, device=device),
        "vllm": VllmEngine(model, world, size, dtype=torch.float32, compiled=False),
    }
    ids, greedy = torch.arange(options.completions), Sampling(options.tokens, temperature=0.0)
    # On a CPU seconds of the processor, with one thread, so that other programs count less.
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    found = {}
    for number in range(options.rounds + 1):  # the first warms up
        for name, engine in engines.items():
            with engine.on_current_weights():
                start = clock()
                found[name] = engine.generate(prompts, ids, greedy)
                if number:
                    seconds[name].append(clock() - start)
    same = (found["torch"].tokens == found["vllm"].tokens).double().mean()
    rates = {name: options.completions * options.tokens / statistics.median(each) for name, each in seconds.items()}
    shown = ", ".join(f"{name} {rate:.0f} tokens/s" for name, rate in rates.items())
    print(f"{shown}; vllm / torch {rates['vllm'] / rates['torch']:.2f}; {same:.1%} of greedy tokens are the same")


if __name__ == "__main__":
    main()
