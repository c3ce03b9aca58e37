"""LeRobot datasets: frames are read as they were written, bad data is named, a run is the same with any world size."""

import json
import os
import re
import shutil
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from tests.support.trainers.gangs import Yard
from tests.support.trainers.lerobot import FPS, TASKS, episodes_of, rename_features, write_lerobot

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.data.lerobot import open_lerobot
from torchyard_trainers.core.data.lerobot_frames import Frames
from torchyard_trainers.core.data.robot_features import ACTION, STATE, lacking
from torchyard_trainers.core.exits import ConfigError, DataError, Exit
from torchyard_trainers.vla.data.augmentation import augmented
from torchyard_trainers.vla.data.episodes import Episodes
from torchyard_trainers.vla.data.recordings import Recordings
from torchyard_trainers.vla.params import resolve_params
from torchyard_trainers.vla.task import VisionLanguageAction

LENGTHS = [7, 5, 9, 6]
FORMATS = [("v2.0", False), ("v2.1", False), ("v2.1", True), ("v3.0", False), ("v3.0", True)]


def recordings(folder, **options):
    dataset = open_lerobot(folder)
    kind = options.pop("kind", "none")
    return Recordings([Episodes(dataset, dataset.episodes, **{"image_size": 32, "chunk": 4} | options)], kind)


@pytest.mark.parametrize(("version", "video"), FORMATS)
def test_every_frame_is_read_as_it_was_written(tmp_path, version, video):
    source = recordings(write_lerobot(tmp_path / "data", version, LENGTHS, video=video, cameras=2))
    assert len(source) == sum(LENGTHS)
    found, row = source.read(range(len(source))), 0
    for written in episodes_of(LENGTHS):
        length = len(written["state"])
        for frame in range(length):
            left = length - frame
            np.testing.assert_array_equal(found.state[row], written["state"][frame])
            assert found.valid[row].tolist() == [ahead < left for ahead in range(4)]
            np.testing.assert_array_equal(found.actions[row][: min(4, left)], written["action"][frame : frame + 4])
            assert found.images.shape[1:] == (2, 32, 32, 3)
            for view in found.images[row].numpy().astype(int):
                away = np.abs(view - written["images"][frame])
                assert away.max() == 0 if not video else away.mean() < 6
            row += 1
    tasks = open_lerobot(tmp_path / "data").tasks
    assert tuple(tasks[number] for number in sorted(tasks)) == TASKS
    assert found.tokens.unique(dim=0).shape[0] == 2
    assert found.mask.sum(1).unique().tolist() == [3, 5], "the words of both tasks and the token that begins them"


def test_state_and_action_may_have_other_names_and_their_absence_is_named_with_the_fix(tmp_path):
    folder = write_lerobot(tmp_path / "data", "v3.0", LENGTHS)
    usual = recordings(folder, kind="min-max")
    expected, rows = usual.demonstrations(usual.read(range(9))), usual.assets()["normalization.json"]
    tasks = folder / "meta/tasks.parquet"
    parquet.write_table(parquet.read_table(tasks).append_column("skill", pa.array(["push", "pull"])), tasks)
    rename_features(folder, {STATE: "state", ACTION: "actions", "observation.images.camera0": "image"})
    with pytest.raises(
        DataError, match=r"no feature 'observation.state'; set trainer.params.fields: \{state: state, act"
    ):
        recordings(folder)
    found = recordings(folder, kind="min-max", fields={"state": "state", "action": "actions"})
    assert found.assets()["normalization.json"] == rows
    again = found.demonstrations(found.read(range(9)))
    assert torch.equal(again.actions, expected.actions)
    assert torch.equal(again.observation.state, expected.observation.state)
    given = {"data": str(folder), "fields": {"state": "state", "action": "actions"}}
    identity = VisionLanguageAction(resolve_params(given, Parallelism())).identity
    assert identity["trainer.params.fields"] == "action: actions, state: state", "others cannot go on from it"
    rename_features(folder, {"actions": "velocity"})
    (said,) = lacking(open_lerobot(folder))
    assert said.endswith("fields: {state: state, action: ...}; the features are state, image, velocity")


def test_a_process_keeps_a_bounded_part_of_a_dataset_with_a_file_for_each_episode(tmp_path, monkeypatch):
    monkeypatch.setattr("torchyard_trainers.core.data.parquet.CACHED", 1)
    dataset = open_lerobot(write_lerobot(tmp_path / "data", "v2.1", LENGTHS))
    frames = Frames(dataset, [STATE, ACTION])
    for episode in (*dataset.episodes, *dataset.episodes):
        frames.of(episode)
        assert frames.image(episode, 0, dataset.cameras[0])
    assert frames.cached_files == {dataset.episodes[-1].file}


def test_a_dataset_that_lerobot_itself_wrote_is_read(tmp_path):
    """The archive is what lerobot 0.4.4 wrote of such episodes, with two equal parts of an action: AV1 in one file."""
    shutil.unpack_archive(Path(__file__).parents[1] / "support/trainers/lerobot-0.4.4.zip", tmp_path)
    found = recordings(tmp_path, image_size=64).read(range(21))
    written = episodes_of([7, 5, 9], size=64)
    np.testing.assert_array_equal(found.state, np.concatenate([each["state"] for each in written]))
    images = np.concatenate([each["images"] for each in written]).astype(int)
    assert np.abs(found.images[:, 0].numpy() - images).reshape(21, -1).mean(1).max() < 2
    assert found.actions.shape == (21, 4, 2)
    assert found.valid.sum(1).tolist() == [min(4, left) for length in (7, 5, 9) for left in range(length, 0, -1)]
    assert open_lerobot(tmp_path).statistics[ACTION]["count"] == [21]


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_the_statistics_of_all_episodes_are_those_of_all_frames(tmp_path, version):
    dataset = open_lerobot(write_lerobot(tmp_path / "data", version, LENGTHS))
    for name, key in ((STATE, "state"), (ACTION, "action")):
        values = np.concatenate([each[key] for each in episodes_of(LENGTHS)]).astype(np.float64)
        found = dataset.statistics[name]
        for kind, expected in {
            "min": values.min(0),
            "max": values.max(0),
            "mean": values.mean(0),
            "std": values.std(0),
        }.items():
            np.testing.assert_allclose(found[kind], expected, atol=1e-6, err_msg=f"{name} {kind}")


@pytest.mark.parametrize(("version", "file"), [("v2.1", "episodes_stats.jsonl"), ("v3.0", "stats.json")])
def test_statistics_are_needed_only_where_they_normalise(tmp_path, version, file):
    folder = write_lerobot(tmp_path / "data", version, LENGTHS)
    (folder / "meta" / file).unlink()
    source = recordings(folder, kind="none")
    batch = source.read([0])
    assert torch.equal(source.demonstrations(batch).actions, batch.actions)
    with pytest.raises(DataError, match=r"the statistics lack 'min' of 'observation.state'; compute the statistics ag"):
        recordings(folder, kind="min-max")


def test_times_choose_frames_and_those_before_an_episode_are_its_first(tmp_path):
    folder = write_lerobot(tmp_path / "data", "v3.0", LENGTHS)
    source = recordings(folder, image_deltas=(-2 / FPS, 0.0), action_seconds=2 / FPS)
    written = episodes_of(LENGTHS)[1]
    found = source.read([LENGTHS[0] + 1, LENGTHS[0] + 4])
    np.testing.assert_array_equal(found.images[0], written["images"][[0, 1]])
    np.testing.assert_array_equal(found.images[1], written["images"][[2, 4]])
    assert found.valid.tolist() == [[True, True, False, False], [True, False, False, False]]
    np.testing.assert_array_equal(found.actions[0][:2], written["action"][[1, 3]])
    with pytest.raises(
        ConfigError, match=r"trainer.params.actionSeconds: 0.15 s is not a whole number of frames at 10"
    ):
        recordings(folder, action_seconds=0.15)
    with pytest.raises(DataError, match=r"no camera 'wrist'; it has observation.images.camera0"):
        recordings(folder, cameras=["wrist"])


def damaged_parquet(change):
    def damage(folder):
        path = folder / "data/chunk-000/file-000.parquet"
        table = parquet.read_table(path)
        columns = {name: table[name].to_pylist() for name in table.column_names}
        change(columns)
        parquet.write_table(
            type(table).from_pydict(columns, schema=table.schema if "short" not in columns else None), path
        )

    return damage


def cut(name, size):
    def damage(folder):
        path = folder / name
        path.write_bytes(path.read_bytes()[:size])

    return damage


def not_fetched(name):
    return lambda folder: (folder / name).write_bytes(POINTER)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 90071992\n"
IMAGE = "observation.images.camera0"
OUTSIDE = {"bytes": None, "path": "../../x"}


def value(name, row, wrong):
    """Put a wrong value into a frame."""
    return damaged_parquet(lambda columns: columns[name].__setitem__(row, wrong))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (value("action", 8, float("nan")), r"file-000.parquet, episode 1, frame 1, field 'action': is \[nan\]"),
        (value("frame_index", 3, 9), r"episode 0, frame 3, field 'frame_index': is 9, expected 3"),
        (value("index", 3, 9), r"episode 0, frame 3, field 'index': is 9, expected 3"),
        (value("task_index", 2, 5), r"episode 0, frame 2, field 'task_index': is 5"),
        (
            value("timestamp", 9, 0.4),
            r"frame 2, field 'timestamp': is 0.4 s after that of frame 0, expected 0.2 s",
        ),
        (value(IMAGE, 1, {"bytes": b"no", "path": None}), rf"0, frame 1, field '{IMAGE}': not a readable image"),
        (value(IMAGE, 1, OUTSIDE), rf"frame 1, field '{IMAGE}': '../../x' is not a file in the dataset"),
        (value(IMAGE, 1, {"bytes": POINTER, "path": None}), rf"field '{IMAGE}': the image is a pointer of Git LFS"),
        (
            not_fetched("data/chunk-000/file-001.parquet"),
            r"file-001.parquet is a pointer of Git LFS, not the file; run",
        ),
        (not_fetched("meta/stats.json"), r"meta/stats.json is a pointer of Git LFS, not the file; run git lfs pull"),
        (cut("data/chunk-000/file-000.parquet", 900), r"file-000.parquet: not a readable Parquet file"),
        (cut("meta/info.json", 40), r"info.json: cannot be read as JSON"),
        (
            lambda folder: (folder / "meta/stats.json").write_text("[" * 100_000),
            r"stats.json: cannot be read as JSON: it is nested too",
        ),
        (lambda folder: (folder / "data/chunk-000/file-001.parquet").unlink(), r"file-001.parquet"),
    ],
)
def test_bad_data_is_named(tmp_path, damage, message):
    folder = write_lerobot(tmp_path / "data", "v3.0", LENGTHS)
    damage(folder)
    with pytest.raises(DataError, match=message) as caught:
        (source := recordings(folder)).read(range(len(source)))
    assert caught.value.code is Exit.DATA


def metadata(name, change):
    """Change a JSON object, the first line of a file with one in each, or the columns of a Parquet file."""

    def damage(folder):
        path = folder / "meta" / name
        if name.endswith("parquet"):
            columns = parquet.read_table(path).to_pydict()
            change(columns)
            parquet.write_table(pa.table(columns), path)
            return
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        change(rows[0])
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return damage


def put(name, wrong, at=None):
    return lambda tree: tree[name].__setitem__(at, wrong) if at is not None else tree.__setitem__(name, wrong)


EPISODES, FEATURES = "episodes/chunk-000/file-000.parquet", "features"
ONE_NUMBER = {"dtype": "float32", "shape": ["a"]}


@pytest.mark.parametrize(
    ("version", "damage", "message"),
    [
        (
            "v3.0",
            metadata("info.json", put("codebase_version", "v1.6")),
            "codebase_version is 'v1.6'; v2.0, v2.1, v3.0 can",
        ),
        ("v3.0", metadata("info.json", put("fps", True)), "info.json: fps is True, expected frames per second above 0"),
        ("v3.0", metadata("info.json", put("fps", float("inf"))), "info.json: fps is inf, expected frames"),
        ("v3.0", metadata("info.json", put("fps", 10**400)), "info.json: fps is 10+, expected frames"),
        ("v3.0", metadata("stats.json", put(ACTION, [10**400], "max")), r"'max' of 'action' is .10+, expected numbers"),
        (
            "v3.0",
            metadata("info.json", put("fps", 30)),
            "frame 1, field 'timestamp': is 0.1 s after that of frame 0, expected 0.0333333 s at the 30 fr",
        ),
        (
            "v3.0",
            metadata("info.json", put(FEATURES, ONE_NUMBER, ACTION)),
            r"shape of feature 'action' is \['a'\], exp",
        ),
        ("v3.0", metadata("info.json", lambda tree: tree[FEATURES].pop(IMAGE)), "needs at least one camera"),
        (
            "v2.1",
            metadata("info.json", put("chunks_size", 0)),
            "'chunks_size' is 0, expected a whole number of 1 or more",
        ),
        (
            "v2.1",
            metadata("episodes.jsonl", put("episode_index", 1)),
            "lists episode 1 more than once; remove the other",
        ),
        ("v2.1", metadata("episodes.jsonl", put("length", True)), "line 1: field 'length' is True, expected a whole"),
        (
            "v2.1",
            lambda data: (data / "meta/tasks.jsonl").write_text("\n\n{}"),
            "tasks.jsonl, line 3: field .task_index. is None",
        ),
        ("v2.1", metadata("tasks.jsonl", put("task", None)), "field 'task' of task 0 is None, expected its text"),
        ("v2.1", metadata("tasks.jsonl", put("task", " ")), "line 1: field 'task' of task 0 is ' ', expected its text"),
        ("v3.0", metadata("tasks.parquet", put("__index_level_0__", "", 1)), "field .* of task 1 is '', expected its"),
        ("v2.1", metadata("episodes_stats.jsonl", put("stats", 3)), "line 1: field 'stats' is 3, expected an object"),
        ("v3.0", metadata(EPISODES, put("data/file_index", None, 1)), "record 2: field 'data/file_index' is None, exp"),
        (
            "v3.0",
            metadata(EPISODES, put(f"videos/{IMAGE}/from_timestamp", None, 1)),
            "from_timestamp' is None, expected a",
        ),
        (
            "v3.0",
            metadata("stats.json", put(ACTION, 3)),
            "stats.json: the statistics of 'action' are 3, expected an obj",
        ),
        (
            "v3.0",
            metadata("stats.json", put(ACTION, ["x"], "max")),
            r"'max' of 'action' is \['x'\], expected numbers; com",
        ),
        (
            "v3.0",
            metadata("stats.json", put(ACTION, [-1], "std")),
            r"'std' of 'action' is \[-1.0\], expected 0 or more",
        ),
        ("v3.0", metadata("stats.json", put(ACTION, [7], "min")), r"'min' of 'action' is 7, above 'max', 0.2; compute"),
    ],
)
def test_bad_metadata_is_named(tmp_path, version, damage, message):
    folder = write_lerobot(tmp_path / "data", version, LENGTHS, video=version == "v3.0")
    damage(folder)
    with pytest.raises(DataError, match=message):
        (source := recordings(folder, kind="min-max")).read(range(len(source)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"std": None}, "the statistics lack 'std' of 'action'; compute the statistics again with LeRobot"),
        ({"max": [1.0, 2.0]}, "statistics: 'max' of 'action' has 2 numbers, not 1; compute"),
        ({"mean": [float("nan")]}, r"statistics: 'mean' of 'action' is \[nan\]; numbers must be finite"),
    ],
)
def test_statistics_that_cannot_normalise_are_named(tmp_path, wrong, message):
    folder = write_lerobot(tmp_path / "data", "v3.0", LENGTHS)
    stats = json.loads((folder / "meta/stats.json").read_text())
    stats[ACTION] = {kind: each for kind, each in (stats[ACTION] | wrong).items() if each is not None}
    (folder / "meta/stats.json").write_text(json.dumps(stats))
    assert len(recordings(folder)), "they are not needed without normalisation"
    with pytest.raises(DataError, match=message):
        recordings(folder, kind="min-max")


def test_a_video_that_ends_early_is_named(tmp_path):
    folder = write_lerobot(tmp_path / "data", "v2.1", LENGTHS, video=True)
    short, long = (
        folder / f"videos/chunk-000/observation.images.camera0/episode_00000{number}.mp4" for number in (1, 2)
    )
    long.write_bytes(short.read_bytes())
    with pytest.raises(
        DataError, match=r"episode 2, frame 6, field 'observation.images.camera0': .*has no frame at 0.6"
    ):
        recordings(folder).read([LENGTHS[0] + LENGTHS[1] + 6])


def test_a_playlist_named_like_a_video_opens_nothing(tmp_path):
    folder = write_lerobot(tmp_path / "data", "v2.1", LENGTHS, video=True)
    first, second = (
        folder / f"videos/chunk-000/observation.images.camera0/episode_00000{number}.mp4" for number in (0, 1)
    )
    first.write_text(f"ffconcat version 1.0\nfile {second.name}\n")
    with pytest.raises(DataError, match=r"episode 0, frame 0, .* cannot be decoded"):
        recordings(folder).read([0])
    first.write_bytes(POINTER)
    with pytest.raises(DataError, match=r"episode_000000.mp4 is a pointer of Git LFS, not the file; run git lfs pull"):
        recordings(folder).read([0])


def test_a_process_opens_each_video_once_and_reads_its_frames_in_any_order(tmp_path, monkeypatch):
    source = recordings(write_lerobot(tmp_path / "data", "v2.1", LENGTHS, video=True))
    expected, opened = source.read(range(len(source))).images, []
    monkeypatch.setattr("av.open", lambda path, open_file=av.open, **_: (opened.append(path), open_file(path))[1])
    source = recordings(tmp_path / "data")
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(0)).tolist()
    found = torch.cat([source.read([number]).images for number in order])
    assert torch.equal(found, expected[order])
    assert len(opened) == len(set(opened)) == len(LENGTHS)
    child = os.fork()
    if child == 0:
        source.read([0])
        os._exit(len(opened) - len(LENGTHS))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1, "a forked process opens a video of its own"


def test_a_process_closes_the_oldest_videos(tmp_path, monkeypatch):
    monkeypatch.setattr("torchyard_trainers.core.data.frames.MOST_OPEN", 2)
    source = recordings(write_lerobot(tmp_path / "data", "v2.1", LENGTHS, video=True))
    whole = source.read(range(len(source))).images
    assert torch.equal(source.read(range(len(source))).images, whole)
    assert len(source.parts[0]._videos._open) == 2


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("../{episode_index}.parquet", r"data_path '../0.parquet' leaves the dataset"),
        ("/etc/{episode_index}", "leaves the dataset"),
        ("{episode_index.__class__.__base__}", "is no field of a path"),
        ("{episode_index:999999999999}", "is no field of a path"),
        ("{episode_index:{episode_chunk}}", "is no field of a path"),
        ("{episode_index!r}", "is no field of a path"),
        ("{0}", "is no field of a path"),
        ("{episode_index", "cannot be filled in"),
    ],
)
def test_a_path_of_the_metadata_stays_in_the_dataset_and_reaches_nothing_else(tmp_path, template, said):
    folder = write_lerobot(tmp_path / "data", "v2.1", LENGTHS)
    info = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps(info | {"data_path": template}))
    with pytest.raises(DataError, match=said):
        open_lerobot(folder)


def test_augmentation_follows_from_keys_and_changes_all_images_of_a_sample_alike():
    images = torch.rand(3, 1, 3, 16, 16).expand(3, 2, 3, 16, 16) * 2 - 1
    keys = torch.tensor([5, 5, 6])
    found = augmented(images, keys, 0.2)
    torch.testing.assert_close(found[:, 0], found[:, 1])
    torch.testing.assert_close(augmented(images[1:2], keys[1:2], 0.2), found[1:2])
    assert (found - images).abs().mean() > 0.02
    torch.testing.assert_close(augmented(images, keys, 0.0), images, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": "x", "objects": 2}, "trainer.params.objects: 2, but trainer.params.data has its own objects"),
        ({"augment": 0.1}, "trainer.params.augment: 0.1, but the procedural tabletop has none; set data or remove it"),
        ({"data": "x", "imageDeltas": [0.1]}, "trainer.params.imageDeltas"),
        ({"fields": {"state": "s"}}, "trainer.params.fields: {'state': 's'}, but the procedural tabletop has none"),
        ({"data": "x", "fields": {"actions": "a"}}, "trainer.params.fields: 'actions' is not a field of a frame; use"),
    ],
)
def test_a_mistake_is_named(given, message):
    with pytest.raises(ConfigError) as caught:
        resolve_params(given, Parallelism())
    assert message in str(caught.value)


def settings(folder, **sections):
    params = {"data": str(folder), "steps": 3, "batch": 7, "warmupSteps": 0, "evalSamples": 5, "evalBatch": 2}
    params |= {"augment": 0.1, "normalization": "mean-std", "holdOut": 0.25, "evalEvery": 3, "logEvery": 1, "seed": 7}
    return {
        "trainer": {"name": "vla", "params": params},
        "device": "cpu",
        "logging": {"tensorboard": False},
        **sections,
    }


@pytest.mark.e2e
def test_a_run_on_recordings_is_the_same_on_one_and_two_processes_and_a_bad_one_ends_with_65(fork_server, tmp_path):
    folder = write_lerobot(tmp_path / "data", "v2.1", LENGTHS, video=True)
    lines = []
    for world, parallelism in ((1, {}), (2, {"strategy": "fsdp", "microBatchSize": 2})):
        yard = Yard(fork_server, tmp_path / f"{world}")
        yard.root.mkdir()
        yard.train(settings(folder, parallelism=parallelism), world)
        lines.append(yard.metrics())
    for one, two in zip(*lines, strict=True):
        for name in {"loss", "gradNorm", "validActions", "flowLoss"} & set(one):
            assert one[name] == pytest.approx(two[name], abs=1e-5, rel=1e-5), name
    work = VisionLanguageAction(resolve_params(settings(folder)["trainer"]["params"], Parallelism()))
    assert json.loads(work.assets()["normalization.json"])["statistics"][ACTION]["count"] == [sum(LENGTHS)]
    video = folder / "videos/chunk-000/observation.images.camera0/episode_000001.mp4"
    video.write_bytes(video.read_bytes()[:300])
    yard = Yard(fork_server, tmp_path / "bad")
    yard.root.mkdir()
    assert yard.start(settings(folder)).wait() == [Exit.DATA]
    assert "episode 1" in yard.failure()["message"]


def with_an_outlier(folder):
    """A dataset of which one action is a thousand times too large, as its statistics say."""
    write_lerobot(folder, "v3.0", [60, 60])
    file = next(folder.glob("data/**/*.parquet"))
    table = parquet.read_table(file)
    actions = np.array(table["action"].to_pylist(), np.float32).reshape(-1, 1)
    actions[50] = 200
    column = pa.array(actions[:, 0].tolist(), table.schema.field("action").type)
    parquet.write_table(table.set_column(table.schema.get_field_index("action"), "action", column), file)
    stats = json.loads((folder / "meta/stats.json").read_text())
    low, high = np.quantile(actions, [0.01, 0.99], axis=0)
    kinds = {"min": actions.min(0), "max": actions.max(0), "mean": actions.mean(0), "std": actions.std(0)}
    stats["action"] |= {kind: each.tolist() for kind, each in (kinds | {"q01": low, "q99": high}).items()}
    stats["observation.state"] |= {"q01": [-1.0] * 2, "q99": [1.0] * 2}
    (folder / "meta/stats.json").write_text(json.dumps(stats))
    return actions


def test_an_outlier_that_flattens_all_other_values_is_named_with_numbers_and_quantiles_ignore_it(tmp_path):
    actions = with_an_outlier(tmp_path)
    for kind in ("min-max", "mean-std"):
        (text,) = recordings(tmp_path, kind=kind).warnings()
        assert re.search(rf"'action': 98 % of the values of part 0 are from -0.2 to 0.2, .* to 200: .* {kind}", text)
        assert "use trainer.params.normalization quantile" in text
    source = recordings(tmp_path, kind="quantile")
    assert source.warnings() == []
    scaled = source.scaling(ACTION).normalize(torch.from_numpy(actions))
    assert torch.quantile(scaled.double(), 0.99, 0).tolist() == pytest.approx([1], abs=1e-5)
    assert (scaled.abs() <= 1).float().mean() > 0.95
    assert torch.allclose(source.scaling(ACTION).restore(scaled), torch.from_numpy(actions), atol=1e-3)
    stats = tmp_path / "meta/stats.json"
    stats.write_text(stats.read_text().replace("q99", "q98"))
    again = recordings(tmp_path, kind="quantile").statistics[ACTION]
    assert (again["q01"], again["q99"]) == ([pytest.approx(-0.2)], [pytest.approx(0.2)]), "measured in the frames"


def test_ordinary_recordings_have_no_outliers(tmp_path):
    write_lerobot(tmp_path, "v2.1", [40, 30])
    for kind in ("min-max", "mean-std", "none"):
        assert recordings(tmp_path, kind=kind).warnings() == []
