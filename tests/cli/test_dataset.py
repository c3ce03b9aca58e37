"""`torchyard dataset inspect`: what a LeRobot dataset holds as text and as a document; problems are named."""

import json

import pytest
from tests.support.trainers.lerobot import TASKS, write_lerobot

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


def test_problems_and_what_is_no_dataset_are_named(torchyard, tmp_path):
    folder = write_lerobot(tmp_path / "data", "v2.1", LENGTHS, video=True)
    video = folder / "videos/chunk-000/observation.images.camera0/episode_000001.mp4"
    video.write_bytes(video.read_bytes()[:300])
    done = torchyard("dataset", "inspect", str(folder))
    assert done.returncode == 1
    assert (
        "problem: data/chunk-000/episode_000001.parquet, episode 1, frame 0, field 'observation.images" in done.stdout
    )
    done = torchyard("dataset", "inspect", str(tmp_path))
    assert done.returncode == 65
    assert "meta/info.json: does not exist; name the folder of a LeRobot dataset" in done.stderr.replace("\n", " ")
