"""`torchyard dataset inspect`: what a dataset holds as text and as a document; problems are named."""

import json
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.support.trainers.lerobot import TASKS, rename_features, write_lerobot

LENGTHS = [7, 5, 9]


@pytest.mark.parametrize(("version", "video"), [("v2.1", True), ("v3.0", False)])
def test_a_sound_dataset_is_described(torchyard, tmp_path, version, video):
    folder = write_lerobot(tmp_path / "data", version, LENGTHS, video=video, cameras=2)
    done = torchyard("dataset", "inspect", str(folder), "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["version"], found["episodes"], found["frames"], found["problems"]) == (version, 3, 21, [])
    assert found["lengths"] == {"min": 5, "median": 7, "max": 9}
    assert found["tasks"] == list(TASKS)
    assert found["features"]["observation.images.camera1"]["shape"] == [32, 32, 3]
    assert found["statistics"]["observation.state"]["max"][1] == 7
    text = torchyard("dataset", "inspect", str(folder)).stdout
    assert "3 episodes, 21 frames at 10 per second" in text
    assert "no problems" in text


def test_a_dataset_that_no_job_can_train_on_has_a_problem(torchyard, tmp_path):
    folder = write_lerobot(tmp_path / "data", "v3.0", [4])
    rename_features(folder, {"action": "actions"})
    done = torchyard("dataset", "inspect", str(folder))
    assert done.returncode == 1
    assert "each episode has 4 frames" in done.stdout
    assert "no feature 'action'; set trainer.params.fields: {action: actions}; the features" in done.stdout
    assert "data: has one episode; record another one, since training holds some out" in done.stdout


def test_a_dataset_is_read_without_torch(tmp_path):
    frames, text = write_lerobot(tmp_path / "data", "v3.0", LENGTHS), tmp_path / "text.jsonl"
    said = [{"role": role, "content": "x"} for role in ("user", "assistant")]
    rows = [{"messages": said}, {"prompt": "a", "completion": "b"}, {"chosen": "a", "rejected": "b", "prompt": "c"}]
    text.write_text("".join(json.dumps(row) + "\n" for row in rows))
    described = "from torchyard_trainers.core.command import described; found = described(sys.argv[1], None)"
    program = f"import sys; {described}; sys.exit(bool(found['problems']) or 'torch' in sys.modules)"
    for path in (frames, text):
        assert subprocess.run([sys.executable, "-c", program, path], check=False).returncode == 0, path


def test_problems_and_what_is_not_a_dataset_are_named(torchyard, tmp_path):
    folder = write_lerobot(tmp_path / "data", "v2.1", LENGTHS, video=True)
    video = folder / "videos/chunk-000/observation.images.camera0/episode_000001.mp4"
    video.write_bytes(video.read_bytes()[:300])
    done = torchyard("dataset", "inspect", str(folder))
    assert done.returncode == 1
    assert (
        "problem: data/chunk-000/episode_000001.parquet, episode 1, frame 0, field 'observation.images" in done.stdout
    )
    folder = write_lerobot(tmp_path / "other", "v3.0", LENGTHS)
    stats = json.loads((folder / "meta/stats.json").read_text())
    stats["action"]["max"] = [9.0]
    (folder / "meta/stats.json").write_text(json.dumps(stats))
    done = torchyard("dataset", "inspect", str(folder))
    assert (done.returncode, "'max' of 'action', part 0, is 9, but that of the frames is 0.2; comp" in done.stdout) == (
        1,
        True,
    ), done.stdout
    folder = write_lerobot(tmp_path / "renumbered", "v2.1", LENGTHS)
    file = folder / "data/chunk-000/episode_000001.parquet"
    table = parquet.read_table(file)
    later = pa.array([number + 5 for number in table["index"].to_pylist()])
    parquet.write_table(table.set_column(table.column_names.index("index"), "index", later), file)
    done = torchyard("dataset", "inspect", str(folder))
    assert done.returncode == 1
    assert "episode 1, frame 0, field 'index': is 12, expected 7; number the frames of the dataset again" in done.stdout
    done = torchyard("dataset", "inspect", "lerobot/pusht")
    assert done.returncode == 65
    assert "run hf download lerobot/pusht --repo-type dataset --local-dir FOLDER and name FOLDER" in done.stderr
    done = torchyard("dataset", "inspect", str(tmp_path))
    assert done.returncode == 65
    assert "meta/info.json: does not exist; name the folder of a LeRobot dataset" in done.stderr.replace("\n", " ")


def test_files_of_text_are_described_with_their_formats_lengths_and_problems(torchyard, tmp_path):
    from torchyard_trainers.lm.tokens import character_tokenizer

    rows = [{"prompt": "1+1=", "completion": "2"}, {"text": "abc"}, {"chosen": [], "rejected": []}, {"text": None}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    parquet.write_table(pa.Table.from_pylist([{"text": "abcd"}] * 3), tmp_path / "b.parquet")
    done = torchyard("dataset", "inspect", str(tmp_path), "-o", "json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["records"], found["problemCount"]) == (8, 3)
    assert found["formats"] == {"text": 4, "prompt, completion": 1, "chosen, rejected": 1}
    assert found["lengths"] == {"min": 4, "median": 5, "p95": 5.8, "max": 6, "total": 25}
    assert "a.jsonl, line 4: field 'text' is null" in found["problems"][1]
    assert "a.jsonl, line 5: not a JSON object" in found["problems"][2]
    (tmp_path / "model").mkdir()
    character_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 100}')
    good = torchyard("dataset", "inspect", str(tmp_path / "b.parquet"), "--tokenizer", str(tmp_path / "model"))
    assert good.returncode == 0, good.stderr
    assert "5 to 5 tokens, median 5" in good.stdout
    assert good.stdout.rstrip().endswith("no problems")
