"""SFT, DPO and GRPO of the workload `lm` beside TRL's trainers, and SFT beside a plain loop, on the same work.

    python benchmarks/trainers/lm_peers.py --peer FOLDER [--methods sft packed dpo grpo] [--rounds 5] [--steps 2]

FOLDER holds TRL and what it needs beside this environment:

    uv pip install --no-deps --target FOLDER trl datasets multiprocess dill xxhash pandas python-dateutil pytz six

All sides train the same Qwen3 from the same folder on the same records, in fp32 with one thread: every step has all
records of the set, so that order does not matter. The losses of the first two steps are compared: equal ones prove
equal work (the second depends on gradients, clipping and update). GRPO learns twice from each rollout, and all sides
get the completions of the first one from a file; later ones are sampled, and the tokens that were generated counted.
`packed` is SFT on records of many lengths in one row of `--tokens`, by `microBatchTokens` and by TRL's `packing`.
The sides take turns, so that a busy machine slows all; seconds are processor time of a side and its processes. Memory
is the most that a process was resident, and what of that came after the program was imported.
"""

import argparse
import inspect
import json
import math
import os
import random
import resource
import statistics
import string
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sides import Side, say

METHODS = {"sft": ("ours", "trl", "plain"), "packed": ("ours", "trl"), "dpo": ("ours", "trl"), "grpo": ("ours", "trl")}
WARM_UP_STEPS = 2
RATE = 1e-3
LETTERS = 60  # of a prompt, and of an answer
NEW_TOKENS = 48
GROUP = 8
ITERATIONS = 2  # steps of GRPO that learn from a rollout
STEPS = 100_000
DAY = 86_400.0  # seconds


class Turns:
    """Counts steps of a side; reports each turn and waits for the next one."""

    def __init__(self, steps: int) -> None:
        self._steps, self._left = steps, WARM_UP_STEPS
        self._imported = 0
        self.losses: list[float] = []
        self.generated = 0
        self._start()

    def imported(self) -> None:
        """Note the memory of the program without a model."""
        self._imported = resident()

    def step(self) -> None:
        """Count a step; end the process when there is no further turn."""
        self._left -= 1
        if self._left:
            return
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        say(
            {
                "cpu": seconds() - self._cpu,
                "wall": time.perf_counter() - self._wall,
                "resident": most,
                "memory": most - self._imported,
                "losses": self.losses[:WARM_UP_STEPS],
                "generated": self.generated,
            }
        )
        if not sys.stdin.readline():
            os._exit(0)
        self._left, self.generated = self._steps, 0
        self._start()

    def _start(self) -> None:
        self._cpu, self._wall = seconds(), time.perf_counter()


def seconds() -> float:
    """Return the processor time of this process and those that it started."""
    found, tick = time.process_time(), os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == os.getpid():
            found += (int(fields[11]) + int(fields[12])) / tick
    return found


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def prepare(folder: Path, options: argparse.Namespace) -> None:
    """Write the model, its tokenizer and the records."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from torchyard_trainers.lm.tokens import character_tokenizer

    tokenizer = character_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=options.vocabulary,
        hidden_size=options.width,
        intermediate_size=3 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.width // 32,
        num_key_value_heads=options.width // 64,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    chance, first = random.Random(0), {}

    def letters(count: int = LETTERS) -> str:
        return "".join(chance.choices(string.ascii_letters, k=count))

    if options.method == "packed":
        rows = [{"prompt": letters(one), "completion": letters(two)} for one, two in lengths_of(options.tokens, chance)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "first.json").write_text("{}")
        return
    with (folder / "rows.jsonl").open("w") as file:
        for _ in range(options.batch // (GROUP if options.method == "grpo" else 1)):
            row = {"prompt": letters()}
            row |= {"sft": {"completion": letters()}, "grpo": {"answer": letters()}}.get(
                options.method, {"chosen": letters(), "rejected": letters()}
            )
            if options.method == "grpo":
                lengths = [chance.randint(NEW_TOKENS // 4, NEW_TOKENS) for _ in range(GROUP)]
                first[row["prompt"]] = ["".join(chance.choices(string.ascii_letters, k=each)) for each in lengths]
            file.write(json.dumps(row) + "\n")
    (folder / "first.json").write_text(json.dumps(first))


def lengths_of(tokens: int, chance: random.Random) -> list[tuple[int, int]]:
    """Return letters of prompts and answers like those of conversations, many short ones and a few long ones.

    With an end token each, they are `tokens` at most.
    """
    found: list[tuple[int, int]] = []
    while True:
        drawn = [max(4, min(250, round(chance.lognormvariate(math.log(mean), 0.8)))) for mean in (20, 60)]
        if sum(drawn) + 1 + count_of(found) > tokens:
            return found
        found.append((drawn[0], drawn[1]))


def count_of(lengths: Sequence[tuple[int, int]]) -> int:
    """Return the tokens of records of these lengths."""
    return sum(prompt + answer + 1 for prompt, answer in lengths)


def records_of(folder: Path) -> list[dict[str, str]]:
    """Return the records that all sides train on."""
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


class FirstCompletions:
    """The completions of the first rollout: tokens that end with the end token if they are short."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        self._texts: dict[str, list[str]] = json.loads((folder / "first.json").read_text())
        self.used = False

    def of(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the completions of prompts; each prompt occurs once for each completion of its group."""
        self.used = True
        found = []
        for prompt in prompts:
            text = self._texts[self._tokenizer.decode(prompt, skip_special_tokens=True)].pop()
            found.append([*self._tokenizer.encode(text), self._tokenizer.eos_token_id][:NEW_TOKENS])
        return found


def ours(folder: Path, options: argparse.Namespace, turns: Turns) -> None:
    """Train by our command line."""
    import torch
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401 - imported with the model otherwise

    from torchyard_trainers import registry
    from torchyard_trainers.core.command import main
    from torchyard_trainers.lm.generation.engine import Completions
    from torchyard_trainers.lm.methods import reinforcement
    from torchyard_trainers.lm.params import resolve_params
    from torchyard_trainers.lm.task import LanguageModeling

    turns.imported()
    first = FirstCompletions(folder)

    class Replayed:
        """An engine whose first completions are those of the file."""

        def __init__(self, engine: Any) -> None:
            self._engine, self.on_current_weights = engine, engine.on_current_weights

        def generate(self, prompts: Sequence[Sequence[int]], ids: Any, sampling: Any) -> Completions:
            if first.used:
                return self._engine.generate(prompts, ids, sampling)
            tokens = [torch.tensor(each) for each in first.of(prompts)]
            mask = [torch.ones(len(each), dtype=torch.bool) for each in tokens]
            stopped = torch.tensor([int(each[-1]) in sampling.stop_tokens for each in tokens])
            padded = [torch.nn.utils.rnn.pad_sequence(each, batch_first=True) for each in (tokens, mask)]
            return Completions(*padded, stopped)

    engine_of = reinforcement.rollout_engine
    reinforcement.rollout_engine = lambda *given: Replayed(engine_of(*given))

    class InTurns(LanguageModeling):
        def begin(self, _session: Any) -> dict[str, float]:
            return {}

        def after_step(self, _session: Any, step: int, means: Any) -> dict[str, float]:
            if self._reinforcement is not None:
                turns.generated += round(self.generated * options.batch)
                self._reinforcement.finished(step)
            turns.losses.append(means["loss"])
            turns.step()
            return {}

        def prepare(self, session: Any, step: int) -> dict[str, float]:
            found = super().prepare(session, step)
            self.generated = found.get("completionTokens", 0.0)
            return found

    registry.build = lambda config: InTurns(resolve_params(config.trainer.params, config.parallelism))
    main(["--config", str(job(folder, options)), "--checkpoint-dir", str(folder / "checkpoints")])


def job(folder: Path, options: argparse.Namespace) -> Path:
    """Write the config of a job as a user would."""
    packed = options.method == "packed"
    batch = len(records_of(folder)) if packed else options.batch
    params = {
        "method": "sft" if packed else options.method,
        "pretrained": str(folder / "model"),
        "data": [str(folder / "rows.jsonl")],
        "validation": [str(folder / "rows.jsonl")],
        "batch": batch,
        "steps": STEPS,
        "lr": RATE,
        "schedule": "constant",
        "warmupSteps": 0,
        "weightDecay": 0.0,
        "maxLength": 512 if packed else 200,
    }
    if params["method"] != "sft":
        params["sftSteps"] = 0
    if options.method == "grpo":
        params |= {"reward": "shaped", "group": GROUP, "maxNewTokens": NEW_TOKENS, "iterations": ITERATIONS}
        params["clipHigh"] = 0.28
    config = {
        "trainer": {"name": "lm", "params": params},
        "device": "cpu",
        "parallelism": {"microBatchTokens": options.tokens} if packed else {"microBatchSize": batch},
        "checkpoint": {"interval": {"steps": STEPS}},
        "health": {"stallSeconds": DAY},  # a side waits while the others have their turns
        "logging": {"tensorboard": False},
    }
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return file


def trl(folder: Path, options: argparse.Namespace, turns: Turns) -> None:
    """Train by TRL."""
    from datasets import load_dataset
    from transformers import TrainerCallback

    shared = {
        "output_dir": str(folder / "trl"),
        "per_device_train_batch_size": options.batch,
        "max_steps": STEPS,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "optim": "adamw_torch_fused",
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }

    class InTurns(TrainerCallback):
        def on_log(self, _arguments: Any, _state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in logs:
                turns.losses.append(float(logs["loss"]))
                turns.generated += round(logs.get("completions/mean_length", 0.0) * options.batch)
                turns.step()

    rows = load_dataset("json", data_files=str(folder / "rows.jsonl"), split="train", cache_dir=str(folder / "cache"))
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401 - imported with the model otherwise

    model, callbacks = str(folder / "model"), [InTurns()]
    if options.method in ("sft", "packed"):
        from trl import SFTConfig, SFTTrainer

        turns.imported()
        if options.method == "packed":
            shared |= {"packing": True, "max_length": options.tokens, "per_device_train_batch_size": 1}
        SFTTrainer(model, SFTConfig(**shared), train_dataset=rows, callbacks=callbacks).train()
    elif options.method == "dpo":
        from trl import DPOConfig, DPOTrainer

        turns.imported()
        DPOTrainer(model, args=DPOConfig(**shared, beta=0.1), train_dataset=rows, callbacks=callbacks).train()
    else:
        from trl import GRPOConfig, GRPOTrainer

        from torchyard_trainers.lm.tasks import shaped

        turns.imported()

        def reward(prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
            return shaped(prompts, completions, [{"answer": each} for each in answer])

        chosen = GRPOConfig(
            **shared,
            num_generations=GROUP,
            num_iterations=ITERATIONS,
            max_completion_length=NEW_TOKENS,
            beta=0.0,
            epsilon_high=0.28,
        )
        replaying(GRPOTrainer, folder)(model, reward, args=chosen, train_dataset=rows, callbacks=callbacks).train()


def replaying(trainer: Any, folder: Path) -> Any:
    """Return a trainer of TRL whose first completions are those of the file."""
    first = FirstCompletions(folder)

    class Replayed(trainer):
        def _generate_single_turn(self, prompt_ids: Any, *given: Any, **named: Any) -> Any:
            if first.used:
                return super()._generate_single_turn(prompt_ids, *given, **named)
            return first.of(prompt_ids), None

    return Replayed


def plain(folder: Path, _options: argparse.Namespace, turns: Turns) -> None:
    """Train by a plain loop, written as nanochat's `chat_sft.py` is: padded batches and a masked loss."""
    import torch
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401 - imported with the model otherwise
    from torch.nn.functional import cross_entropy
    from transformers import AutoModelForCausalLM, AutoTokenizer

    turns.imported()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    rows = records_of(folder)

    def batch() -> tuple[Any, Any]:
        ids = [
            (tokenizer.encode(row["prompt"]), [*tokenizer.encode(row["completion"]), tokenizer.eos_token_id])
            for row in rows
        ]
        longest = max(len(prompt) + len(answer) for prompt, answer in ids) - 1
        inputs = torch.full((len(ids), longest), tokenizer.pad_token_id)
        targets = torch.full((len(ids), longest), -1)
        for row, (prompt, answer) in enumerate(ids):
            every = torch.tensor(prompt + answer)
            inputs[row, : len(every) - 1] = every[:-1]
            targets[row, len(prompt) - 1 : len(every) - 1] = every[len(prompt) :]
        return inputs, targets

    for _ in range(STEPS):
        inputs, targets = batch()
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        turns.losses.append(loss.item())
        turns.step()


def main() -> None:
    """Run the sides in turns and print what each reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, help="folder with TRL", required=True)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="steps of a turn")
    parser.add_argument("--width", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2048, help="of a packed row")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--method", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if "grpo" in options.methods and (options.batch % GROUP or options.steps % ITERATIONS):
        parser.error(f"GRPO needs a batch that is a multiple of {GROUP}, and steps that are one of {ITERATIONS}")
    if options.side:
        {"ours": ours, "trl": trl, "plain": plain}[options.side](options.folder, options, Turns(options.steps))
        return
    trainers = Path(__file__).resolve().parents[2] / "trainers"
    os.environ |= {"PYTHONPATH": f"{trainers}:{options.peer.resolve()}", "HF_HUB_OFFLINE": "1"}
    for method in options.methods:
        options.method = method
        measure(method, options)


def measure(method: str, options: argparse.Namespace) -> None:
    """Measure the sides of a method in turns."""
    names = METHODS[method]
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), options)
        command = [sys.executable, "-W", "ignore", __file__, *sys.argv[1:], "--method", method, "--folder", folder]
        sides = {name: Side([*command, "--side", name]) for name in names}
        rounds = [{name: side.ask("go") for name, side in sides.items()} for _ in range(options.rounds)]
        for side in sides.values():
            side.close()
        step = options.batch * (2 * LETTERS + 1) * (2 if method == "dpo" else 1)
        if method == "packed":
            step = count_of([(len(row["prompt"]), len(row["completion"])) for row in records_of(Path(folder))])
    show(method, {name: side.ready for name, side in sides.items()}, rounds, step, options)


def show(
    method: str, ready: dict[str, Any], rounds: list[dict[str, Any]], step: int, options: argparse.Namespace
) -> None:
    """Print a table: tokens per second of processor time, the ratio to ours, memory, losses, lines of user code.

    Args:
        method: that was measured.
        ready: the first answer of each side.
        rounds: the answers of each round.
        step: tokens of a step, where none are generated.
        options: of the command line.
    """
    print(f"{method}: {step} tokens a step, width {options.width}, {options.layers} layers; {len(rounds)} rounds")
    print(f"  {'':<8}{'tokens/s':>10}{'theirs/ours':>24}{'MiB':>8}{'in all':>8}{'lines':>7}  first losses")
    lines = {
        name: len(inspect.getsource(each).splitlines())
        for name, each in (("ours", job), ("trl", trl), ("plain", plain))
    }
    for name in ready:
        every = [each[name] for each in rounds]
        tokens = [each["generated"] or options.steps * step for each in every]
        rate = statistics.median(count / each["cpu"] for count, each in zip(tokens, every, strict=True))
        ratios = [
            (each[name]["cpu"] / (each[name]["generated"] or 1))
            / (each["ours"]["cpu"] / (each["ours"]["generated"] or 1))
            for each in rounds
        ]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        memory, resident_most = (max(each[kind] for each in every) / 2**20 for kind in ("memory", "resident"))
        losses = ", ".join(f"{each:.6f}" for each in ready[name]["losses"])
        print(f"  {name:<8}{rate:>10.0f}{spread:>24}{memory:>8.0f}{resident_most:>8.0f}{lines[name]:>7}  {losses}")
    for name in ready:
        pairs = list(zip(ready["ours"]["losses"], ready[name]["losses"], strict=True))
        assert all(math.isclose(*pair, abs_tol=1e-5) for pair in pairs), f"{name} does other work than ours: {pairs}"


if __name__ == "__main__":
    main()
