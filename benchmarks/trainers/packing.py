"""Tokens a second of packed rows, beside a batch of equally long samples without padding, in one run.

    OMP_NUM_THREADS=1 python benchmarks/trainers/packing.py [--rounds 7] [--width 384] [--tokens 2048] [--mean 128]

Forward and backward passes of the same model. `packed` is a row of samples of many lengths as `lm` computes it, `mask`
the same row with a mask of the whole row, `padded` the same samples padded to the longest one, and `equal` as many
tokens in samples that all have the mean length: nothing is padded, so no layout of the samples can do less. The sides
take turns; a ratio is the median over rounds of the ratio in a round. On a CPU seconds are those of the processor.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from torchyard_trainers.lm.data.datasets import packed, padded
from torchyard_trainers.lm.data.records import Document
from torchyard_trainers.lm.document_attention import use_document_attention
from torchyard_trainers.lm.models import LanguageModel

VOCABULARY = 8192


def model_of(width: int, layers: int, tokens: int) -> LanguageModel:
    """Make the model; the same weights every time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        vocab_size=VOCABULARY,
        max_position_embeddings=tokens,
        tie_word_embeddings=True,
    )
    return LanguageModel(LlamaForCausalLM._from_config(config, attn_implementation="sdpa"))  # noqa: SLF001


def lengths_of(tokens: int, mean: int) -> list[int]:
    """Return lengths like those of conversations: many short samples and a few long ones, `tokens` in all."""
    generator = torch.Generator().manual_seed(1)
    found: list[int] = []
    while sum(found) < tokens:
        drawn = int(torch.empty(1).log_normal_(0, 0.8, generator=generator) * mean * 0.73)
        found.append(min(max(drawn, 8), tokens - sum(found)))
    return found if found[-1] > 1 else [*found[:-2], found[-2] + 1]


def documents_of(lengths: list[int]) -> list[Document]:
    """Return samples of random tokens; what is learned does not matter here."""
    generator = torch.Generator().manual_seed(2)
    rows = (torch.randint(VOCABULARY, (each + 1,), generator=generator).tolist() for each in lengths)
    return [Document(each, [True] * len(each)) for each in rows]


def sides_of(options: argparse.Namespace) -> dict[str, Callable[[], Tensor]]:
    """Return what each side computes in a step: the loss of as many tokens."""
    device, lengths = torch.device(options.device), lengths_of(options.tokens, options.mean)
    equal = documents_of([options.mean] * (options.tokens // options.mean))
    masked, fast = (model_of(options.width, options.layers, options.tokens).to(device) for _ in range(2))
    assert use_document_attention(fast.lm)
    row, rows, even = packed(documents_of(lengths)), padded(documents_of(lengths), 0), padded(equal, 0)
    tensors = [{name: each[name].to(device) for name in ("tokens", "labels")} for each in (row, rows, even)]
    positions = row["positions"].to(device)
    print(f"{len(lengths)} samples of {min(lengths)} to {max(lengths)} tokens, {sum(lengths)} in all")
    return {
        "packed": lambda: fast(**tensors[0], position_ids=positions, documents=row["inputs"]),
        "mask": lambda: masked(**tensors[0], position_ids=positions),
        "padded": lambda: masked(**tensors[1]),
        "equal": lambda: masked(**tensors[2]),
    }


def main() -> None:
    """Print tokens a second of each side, and ratios to `equal`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 7), ("width", 384), ("layers", 6), ("tokens", 2048), ("mean", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    options = parser.parse_args()
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    sides = sides_of(options)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(options.rounds + 1):
        for name, act in sides.items():
            began = clock()
            with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
                loss = act()
            loss.backward()
            if options.device == "cuda":
                torch.cuda.synchronize()
            if number:  # the first one warms up
                seconds[name].append(clock() - began)
    for name, times in seconds.items():
        ratios = [equal / own for equal, own in zip(seconds["equal"], times, strict=True)]
        rate = options.tokens / statistics.median(times)
        spread = f"{statistics.median(ratios):.2f} of equal ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{name:>7}: {rate:>9,.0f} tokens/s, {spread}")


if __name__ == "__main__":
    main()
