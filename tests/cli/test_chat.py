"""`torchyard chat`: a run and an export answer as they learned; a table of completions; a folder is evaluated."""

import json

import pytest
import yaml
from tests.cli.conftest import CommandLine
from tests.support.waiting import DEADLINE

pytestmark = pytest.mark.e2e

PARAMS = {"steps": 110, "evalEvery": 110, "evalSamples": 64, "evalCompletions": 64}


def job(torchyard, name, mode="train", **params):
    trainer = {"name": "lm", "mode": mode, "params": params}
    spec = {"trainer": trainer, "device": "cpu"} | ({"export": {"formats": ["hf"]}} if mode == "train" else {})
    tree = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}
    path = torchyard.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(tree))
    done = torchyard("run", path, "-q")
    assert done.returncode == 0, done.stderr
    return torchyard.run_folder(name) / "checkpoints"


def talk(torchyard: CommandLine, *words, lines):
    process = torchyard.start("chat", *words, stdin=-1)
    out, errors = process.communicate("".join(line + "\n" for line in lines), timeout=DEADLINE)
    assert process.returncode == 0, errors
    return out.splitlines()


def test_a_model_talks_as_it_learned_from_a_run_and_from_its_export(torchyard):
    folder = job(torchyard, "reverse", **PARAMS)
    metrics = json.loads((folder / "DONE").read_text())["metrics"]
    rows = [json.loads(line) for line in (folder / "final" / "completions.jsonl").read_text().splitlines()]
    # The most probable tokens after the right ones, and those that are generated, are the same answers.
    assert metrics["exactMatch"] == metrics["evalReward"] > 0.5
    assert all(row["reward"] == (row["greedy"] == row["answer"]) for row in rows)
    assert "| prompt | answer | greedy | reward |" in (folder / "final" / "completions.md").read_text()
    asked, said = [row["prompt"] for row in rows[:4]], [row["greedy"] for row in rows[:4]]
    (folder / "run.json").rename(folder / "away")
    assert talk(torchyard, "reverse", "--raw", "--temperature", "0", lines=asked) == said, "the export"
    (folder / "away").rename(folder / "run.json")
    (folder / "export").rename(torchyard.folder / "exported")
    assert talk(torchyard, "reverse", "--raw", "--temperature", "0", lines=asked) == said, "the checkpoint"
    exported = torchyard.folder / "exported" / "hf"
    one = ["--max-new-tokens", "1", "--system", "s"]
    first = talk(torchyard, exported, *one, "--temperature", "0", lines=["hi", "ho"])
    assert len(first) == 2, "each line is a turn, by the chat template"
    refused = torchyard("chat", exported, "--template", "enable_thinking=false")
    assert refused.returncode == 64
    assert "--template: the chat template does not use 'enable_thinking'" in refused.stderr
    (torchyard.folder / "test.jsonl").write_text(
        "".join(json.dumps({"prompt": row["prompt"], "answer": row["answer"]}) + "\n" for row in rows)
    )
    files = {"pretrained": str(exported), "method": "grpo", "validation": ["test.jsonl"], "maxNewTokens": 6}
    measured = job(torchyard, "measure", "eval", **files)
    found = json.loads((measured / "DONE").read_text())["metrics"]
    assert found["evalReward"] == found["exactMatch"] == sum(row["reward"] for row in rows) / len(rows)
    assert (measured / "evaluation" / "completions.md").is_file()


def test_what_does_not_talk_is_named(torchyard, tmp_path):
    done = torchyard("chat", "nothing")
    assert done.returncode == 64
    assert "there is no run 'nothing'" in done.stderr
    done = torchyard("chat", str(tmp_path))
    assert done.returncode == 64
    assert "has neither config.json nor checkpoints" in done.stderr
    done = torchyard("chat", "Qwen/Qwen3-0.6B", "--temperature", "0")
    assert done.returncode == 64
    assert "torchyard: Qwen/Qwen3-0.6B does not exist; check the path, or if it is a model of the" in done.stderr
