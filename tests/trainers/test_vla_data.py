"""What recordings become for a policy: delta actions, quantiles, and mixtures of datasets."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from tests.support.trainers.lerobot import episodes_of, rename_features, write_lerobot

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.data.robot_features import ACTION, STATE
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.workload import ids_of_step
from torchyard_trainers.vla.params import resolve_params
from torchyard_trainers.vla.task import VisionLanguageAction

LENGTHS = [7, 5, 9, 6]
TRAIN = 3  # episodes, with a hold-out of a quarter
SMALL = {"holdOut": 0.25, "evalSamples": 4}


def workload(**params):
    return VisionLanguageAction(resolve_params(SMALL | params, Parallelism()))


def chunks(lengths=LENGTHS, horizon=4):
    """Return state and valid actions of the chunks of all frames that train, by a loop over them."""
    for episode in episodes_of(lengths)[:TRAIN]:
        for frame, state in enumerate(episode["state"]):
            yield state, episode["action"][frame : frame + horizon]


def test_delta_actions_are_changes_of_the_state_at_the_frame_and_are_undone_for_the_robot(tmp_path):
    folder = write_lerobot(tmp_path / "data", "v2.1", LENGTHS)
    work = workload(data=str(folder), deltaActions=True, normalization="mean-std")
    source, written = work.source, list(chunks())
    batch = source.read(range(len(source)))
    deltas = np.concatenate([actions - state[:1] for state, actions in written])
    np.testing.assert_allclose(batch.actions[batch.valid].numpy(), deltas, atol=1e-6)
    statistics = json.loads(work.assets()["normalization.json"])
    assert statistics["deltaParts"] == [True]
    assert statistics["statistics"][ACTION]["mean"] == pytest.approx(deltas.mean(0), abs=1e-6)
    assert statistics["statistics"][ACTION]["std"] == pytest.approx(deltas.std(0), abs=1e-6)
    shown = source.demonstrations(batch)
    commands = source.commands(shown.actions, batch.state)[batch.valid]
    torch.testing.assert_close(commands, torch.from_numpy(np.concatenate([actions for _, actions in written])))
    held_out = work._held_out
    assert held_out.statistics == source.statistics, "those of what trains"


@pytest.mark.parametrize("part", ["0", "step"])
def test_a_part_that_stays_absolute_is_named_by_number_or_name(tmp_path, part):
    folder = write_lerobot(tmp_path / "data", "v3.0", LENGTHS)
    work = workload(data=str(folder), deltaActions=True, absoluteParts=[part])
    plain = workload(data=str(folder)).source.read(range(5)).actions
    assert torch.equal(work.source.read(range(5)).actions, plain)
    with pytest.raises(ConfigError, match=r"absoluteParts: 'grip' is no part of an action of .*use 0 to 0 and step"):
        workload(data=str(folder), deltaActions=True, absoluteParts=["grip"])


@pytest.mark.parametrize("delta", [False, True])
def test_quantiles_that_a_dataset_lacks_are_those_of_its_frames(tmp_path, delta):
    folder = write_lerobot(tmp_path / "data", "v2.1", LENGTHS)
    source = workload(data=str(folder), normalization="quantile", deltaActions=delta).source
    state = np.concatenate([each["state"] for each in episodes_of(LENGTHS)[:TRAIN]])
    actions = np.concatenate([each["action"] for each in episodes_of(LENGTHS)[:TRAIN]])
    if delta:
        actions = np.concatenate([actions - state[:1] for state, actions in chunks()])
    for name, values in {STATE: state, ACTION: actions}.items():
        low, high = np.quantile(values.astype(np.float64), [0.01, 0.99], axis=0)
        scaled = source.scaling(name).normalize(torch.from_numpy(values))[:, 0].double().numpy()
        np.testing.assert_allclose(scaled, 2 * (values - low)[:, 0] / (high - low)[0] - 1, atol=1e-5)


def test_a_mixture_has_the_shares_of_its_weights_the_same_order_again_and_statistics_of_all(tmp_path):
    one = write_lerobot(tmp_path / "one", "v2.1", LENGTHS)
    other = write_lerobot(tmp_path / "other", "v3.0", [30, 20, 25, 20])
    given = {"mixture": {str(one): 3, str(other): 1}, "batch": 16, "normalization": "mean-std"}
    work = workload(**given)
    sizes = {len(part): part.dataset.folder.name for part in work.source.parts}
    ids = [number for step in range(20) for number in ids_of_step(work, step)]
    samples = [work.source._rows._at(number) for number in ids]
    counts = Counter(part.dataset.folder.name for part, _ in samples)
    assert counts["one"] / len(ids) == pytest.approx(0.75, abs=0.06)
    assert sizes == {21: "one", 75: "other"}
    turned = workload(**given | {"mixture": {str(other): 2, str(one): 6}})
    assert ids_of_step(turned, 7) == ids_of_step(work, 7)
    for first, second in zip(work.source.read(range(6)), turned.source.read(range(6)), strict=True):
        assert first is second is None or torch.equal(first, second)
    assert turned.source.fingerprint == work.source.fingerprint
    assert workload(**given | {"mixture": {str(one): 1, str(other): 1}}).source.fingerprint != work.source.fingerprint
    # The metadata has the statistics of all episodes, also of those that are held out.
    parts = {name: episodes_of(lengths) for name, lengths in (("one", LENGTHS), ("other", [30, 20, 25, 20]))}
    means = {name: np.concatenate([each["state"] for each in some]).mean(0) for name, some in parts.items()}
    expected = (21 * means["one"] + 75 * means["other"]) / 96
    assert work.source.statistics[STATE]["mean"] == pytest.approx(expected, abs=1e-5)
    batch = work.source.read(ids[:16])
    assert batch.images.shape == (16, 1, 42, 42, 3)


def test_datasets_that_differ_are_named_with_the_difference(tmp_path):
    one = write_lerobot(tmp_path / "one", "v3.0", LENGTHS)
    other = write_lerobot(tmp_path / "other", "v3.0", [30, 20], cameras=2)
    given = {"mixture": {str(one): 1, str(other): 1}}
    with pytest.raises(ConfigError, match=r"mixture: .* have other cameras .*set trainer.params.cameras to names"):
        workload(**given)
    assert len(workload(**given, cameras=["observation.images.camera0"]).source) > 0
    for old, new in (("observation.state", "other"), ("action", "observation.state"), ("other", "action")):
        rename_features(other, {old: new})
    with pytest.raises(ConfigError, match=r"differ in the parts of their state \(2 and 1\)|\(1 and 2\)"):
        workload(**given, cameras=["observation.images.camera0"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"deltaActions": True}, "trainer.params.deltaActions: True, but the procedural tabletop has none; set data"),
        ({"data": "x", "absoluteParts": ["0"]}, "absoluteParts: 0, but all parts of an action are absolute; set"),
        ({"mixture": {"x": 1}}, "trainer.params.mixture: has one dataset; set trainer.params.data: x"),
        ({"mixture": {"x": 1, "y": 0}}, "trainer.params.mixture"),
        ({"mixture": {"x": 1, "y": 1}, "data": "z"}, "trainer.params.mixture: x, y, but trainer.params.data is z"),
        ({"loraAlpha": 4}, "trainer.params.loraAlpha: 4.0, but there are no adapters; set trainer.params.loraRank"),
        ({"loraRank": 4, "freezeLanguage": True}, "trainer.params.freezeLanguage: true, but trainer.params.loraRank"),
        ({"data": "x", "instruction": "go"}, "trainer.params.instruction: go, but there are no episodes in an env"),
        ({"environment": "a-v0"}, "trainer.params.environment: a-v0, but the procedural tabletop has none; set data"),
    ],
)
def test_a_mistake_is_named(given, message):
    with pytest.raises(ConfigError) as caught:
        resolve_params(given, Parallelism())
    assert message in str(caught.value)
