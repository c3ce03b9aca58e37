"""A real model learns from records: SmolLM2 with LoRA; plain transformers and peft answer as the trainer did."""

import json
import random
from datetime import date, timedelta

import pytest
from hack import demo_lm, smollm2
from hack.locked_packages import UnavailableError
from tests.learning.conftest import run_trainer

TRAINED, HELD_OUT, LONGEST = 64, 8, 16


def dates(count):
    """Return conversations about different days, each answered with the day as ISO 8601 writes it."""
    chance, found = random.Random(7), {}
    while len(found) < count:
        day = date(1900, 1, 1) + timedelta(days=chance.randrange(36_500))
        found[f"{day.day} {day:%B} {day.year}"] = day.isoformat()
    return [
        {
            "messages": [
                {"role": "system", "content": "ISO date:"},
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        }
        for question, answer in found.items()
    ]


def train(folder, model):
    """Train adapters on dates and export them, in a process of their own."""
    rows = dates(TRAINED + HELD_OUT)
    for name, part in (("train", rows[:TRAINED]), ("held-out", rows[TRAINED:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    params = {
        "pretrained": str(model), "data": ["train.jsonl"], "validation": ["held-out.jsonl"], "loraRank": 8,
        "batch": 4, "steps": 16, "lr": 2e-3, "lrFinal": 0.0, "warmupSteps": 1, "maxNewTokens": LONGEST,
        "evalSamples": HELD_OUT, "evalCompletions": HELD_OUT, "evalEvery": 100,
    }  # fmt: skip
    config = {
        "trainer": {"name": "lm", "params": params},
        "device": "cpu",
        "parallelism": {"microBatchSize": 4},
        "export": {"formats": ["hf"]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    done = run_trainer(folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_adapters_of_a_real_model_answer_questions_that_were_held_out(tmp_path):
    try:
        model = smollm2.folder()
    except UnavailableError as error:
        pytest.skip(str(error))
    train(tmp_path, model)
    final = tmp_path / "checkpoints" / "final"
    summary = json.loads((final / "summary.json").read_text())
    assert summary["exactMatchUntrained"] == 0, summary
    assert summary["exactMatch"] >= 0.75, summary
    rows = [json.loads(line)["messages"] for line in (tmp_path / "held-out.jsonl").read_text().splitlines()]
    told = [json.loads(line)["greedy"].strip() for line in (final / "completions.jsonl").read_text().splitlines()]
    found = demo_lm.answers(model, tmp_path / "checkpoints" / "export" / "hf", [row[:-1] for row in rows], LONGEST)
    assert found == told
    right = [row[-1]["content"] for row in rows]
    assert sum(map(str.__eq__, found, right)) == summary["exactMatch"] * len(rows)
