"""Tokens a second of a causal language model: our loop, `transformers.Trainer` and a loop like nanoGPT's, in one run.

    python benchmarks/trainers/lm.py [--rounds 7] [--steps 3] [--width 384] [--device cpu] [--precision fp32]

The same model (Llama of transformers), weights, samples, batch, AdamW (fused), clipping and precision on each side; no
side saves, each logs every tenth step. Ours is the whole loop, `core/command.py` to `core/loop.py`, with the workload
of `lm_workload.py`. The sides take turns, `--steps` steps each, so that what else the machine does meets them alike; a
ratio is the median over rounds of the ratio in a round.

On a CPU seconds are those of the processor, so that other programs count less, with one thread; wall time is beside.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from sides import Side, say

SIDES = ("ours", "transformers", "nanogpt")
WARM_UP_STEPS = 2


class Turns:
    """Called after each step of a side: says how long its turn took, and waits for the next one."""

    def __init__(self, steps: int, device: str) -> None:
        self._steps, self._device = steps, device
        self._left, self._first = WARM_UP_STEPS, True
        self._start()

    def step(self) -> None:
        """Count a step; at the end of a turn, tell and wait. Ends the process when there is no further turn."""
        self._left -= 1
        if self._left:
            return
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()
        told = {"cpu": time.process_time() - self._cpu, "wall": time.perf_counter() - self._wall}
        say({"ready": True} if self._first else told)
        if not sys.stdin.readline():
            os._exit(0)
        self._first, self._left = False, self._steps
        self._start()

    def _start(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()


def ours(sizes: Any, options: argparse.Namespace, turns: Turns) -> None:
    """Train by our command line."""
    from lm_workload import Lm

    from torchyard_trainers import registry
    from torchyard_trainers.core.command import main

    class InTurns(Lm):
        def after_step(self, *_: Any) -> dict[str, float]:
            turns.step()
            return {}

    registry.check = lambda _: None
    registry.build = lambda _: InTurns(sizes)
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "trainer": {"name": "lm"},
            "device": options.device,
            "parallelism": {"precision": options.precision, "microBatchSize": sizes.batch},
            "checkpoint": {"interval": {"steps": sizes.steps}},
            "logging": {"tensorboard": False},
        }
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        sys.exit(main(["--config", str(file), "--checkpoint-dir", f"{folder}/checkpoints"]))


def transformers(sizes: Any, options: argparse.Namespace, turns: Turns) -> None:
    """Train by `transformers.Trainer`."""
    from lm_workload import CLIP, RATE, build, texts
    from torch.utils.data import Dataset
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Texts(Dataset):
        def __init__(self) -> None:
            self.rows = texts(sizes)

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"input_ids": self.rows[index], "labels": self.rows[index]}

    class InTurns(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.step()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=sizes.batch,
            max_steps=sizes.steps,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            weight_decay=0.1,
            adam_beta2=0.999,
            max_grad_norm=CLIP,
            optim="adamw_torch_fused",
            bf16=options.precision == "bf16",
            use_cpu=options.device == "cpu",
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(build(sizes), arguments, train_dataset=Texts(), callbacks=[InTurns()]).train()


def nanogpt(sizes: Any, options: argparse.Namespace, turns: Turns) -> None:
    """Train by a bare loop, written as nanoGPT's `train.py` is."""
    import torch
    from lm_workload import CLIP, RATE, SAMPLES, build, texts

    model, rows = build(sizes).to(options.device), texts(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1, fused=True)
    half = options.precision == "bf16"
    context = torch.autocast(options.device, torch.bfloat16) if half else nullcontext()

    def batch() -> torch.Tensor:
        return rows[torch.randint(SAMPLES, (sizes.batch,))].to(options.device, non_blocking=True)

    text = batch()
    for step in range(sizes.steps):
        with context:
            logits = model(input_ids=text[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten())
        text = batch()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            sys.stderr.write(f"iter {step}: loss {loss.item():.4f}\n")
        turns.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="steps of a turn")
    parser.add_argument("--width", type=int, default=384, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        from lm_workload import Sizes

        sizes = Sizes(width=options.width, layers=options.layers, length=options.length, batch=options.batch)
        {"ours": ours, "transformers": transformers, "nanogpt": nanogpt}[options.side](
            sizes, options, Turns(options.steps, options.device)
        )
        return
    command = [sys.executable, "-W", "ignore", __file__, *sys.argv[1:], "--side"]
    sides = {name: Side([*command, name]) for name in SIDES}
    rounds = [{name: side.ask("go") for name, side in sides.items()} for _ in range(options.rounds)]
    for side in sides.values():
        side.close()
    show(rounds, options)


def show(rounds: list[dict[str, dict[str, float]]], options: argparse.Namespace) -> None:
    """Print a table: tokens a second by each clock, and ours over theirs."""
    import torch
    from lm_workload import Sizes, build
    from transformers import __version__

    with torch.device("meta"):
        count = sum(each.numel() for each in build(Sizes(width=options.width, layers=options.layers)).parameters())
    print(
        f"{count / 1e6:.1f} M parameters, {options.batch} x {options.length} tokens a step, {options.precision} on "
        f"{options.device}; torch {torch.__version__}, transformers {__version__}; {options.rounds} rounds"
    )
    clocks = ("cpu", "wall") if options.device == "cpu" else ("wall",)
    tokens = options.batch * options.length * options.steps
    for clock in clocks:
        print(f"{clock + ' seconds':<14}{'tokens/s':>10}{'ours is':>10}")
        for name in SIDES:
            rate = tokens / statistics.median(each[name][clock] for each in rounds)
            ratio = statistics.median(each[name][clock] / each["ours"][clock] for each in rounds)
            print(f"  {name:<12}{rate:>10.0f}{ratio:>9.2f}x")


if __name__ == "__main__":
    main()
