"""The modes besides training, as real gangs run them: what they measure, what they write, what they never touch."""

import hashlib
import json
import shutil

import pytest
from tests.support.trainers.gangs import config

pytestmark = pytest.mark.e2e


def in_mode(mode, settings=None, **sections):
    settings = config(**sections) if settings is None else settings | sections
    return settings | {"trainer": settings["trainer"] | {"mode": mode}}


def test_eval_measures_the_best_checkpoint_of_another_run_and_changes_nothing_there(yard):
    params = {"steps": 18, "lr": 0.05, "lrFinal": 0.05, "evalEvery": 3}
    yard.train(config(params=params, checkpoint={"interval": {"steps": 1000}, "keepLast": 1, "keepBest": 1}))
    other = yard.root / "other"
    shutil.move(yard.checkpoints, other)
    before = {path: path.stat().st_mtime_ns for path in other.rglob("*")}
    best = min(
        (json.loads(path.read_text()) for path in other.glob("step-*/state.json")), key=lambda record: record["score"]
    )
    assert best["step"] != 18, "a run whose last model is its best would prove nothing"
    yard.train(in_mode("eval", config(params=params, checkpoint={"resumeFrom": str(other / "best")})), world=2)
    assert yard.report()["metrics"]["cost"] == pytest.approx(best["score"], abs=1e-5)
    assert yard.report()["step"] == best["step"]
    assert json.loads((yard.checkpoints / "DONE").read_text())["step"] == best["step"]
    assert {path: path.stat().st_mtime_ns for path in other.rglob("*")} == before


def test_a_missing_checkpoint_ends_the_job_with_67_and_no_folder_is_created(yard):
    gang = yard.start(in_mode("eval", checkpoint={"resumeFrom": str(yard.root / "nowhere")}), world=2)
    assert gang.wait() == [67, 67]
    assert "checkpoint.resumeFrom" in yard.failure()["message"]
    assert not (yard.root / "nowhere").exists()


@pytest.mark.parametrize("mode", ["eval", "export"])
@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"heads": 1}, "trainer.params.heads is 1 but was 2"),
        ({"model": "gt"}, "trainer.params.model is 'gt' but was 'am'"),
        ({"embedding": 32}, "the weights have other shapes (trainer.params was {"),
    ],
    ids=str,
)
def test_weights_of_another_model_are_rejected(yard, mode, params, said):
    yard.train(config(params={"steps": 2}))
    other = yard.root / "other"
    shutil.move(yard.checkpoints, other)
    wanted = in_mode(mode, config(params={"steps": 2} | params, checkpoint={"resumeFrom": str(other)}))
    assert yard.start(wanted, world=2).wait() == [65, 65]
    assert said in yard.failure()["message"]


def test_eval_measures_a_model_on_problems_of_another_size_than_it_was_trained_on(yard):
    yard.train(config(params={"steps": 2, "baseline": "rollout"}))
    other = yard.root / "other"
    shutil.move(yard.checkpoints, other)
    sizes = {"customers": 9, "capacity": 25, "seed": 5, "baseline": "shared", "batch": 6}
    yard.train(in_mode("eval", config(params=sizes, checkpoint={"resumeFrom": str(other)})))
    assert yard.report()["metrics"]["cost"] > 0


def test_bench_reports_speed_and_environment(yard):
    yard.train(in_mode("bench", config(params={"steps": 9, "evalEvery": 1000})), world=2)
    report = yard.report()
    found = json.loads((yard.checkpoints / "bench.json").read_text())
    assert report["throughput"]["stepsPerSecond"] == pytest.approx(1 / report["metrics"]["stepSeconds"])
    assert report["throughput"]["samplesPerSecond"] == pytest.approx(12 * report["throughput"]["stepsPerSecond"])
    assert report["metrics"]["measuredSteps"] == 4, "five steps warm up, `steps` is the most there are"
    assert report["metrics"]["flopsPerSample"] > 0
    assert 0 < report["metrics"]["dataWaitShare"] < 1
    assert "mfu" not in report["throughput"], "the peak of a CPU is not known"
    assert found["environment"]["world"] == 2
    assert found["figures"]["stepsPerSecond"] == report["throughput"]["stepsPerSecond"]
    assert not yard.committed()


def test_training_exports_the_requested_formats_and_reports_them(yard):
    yard.train(config(export={"formats": []}), world=2)
    folder = yard.checkpoints / "export" / "safetensors"
    manifest = json.loads((folder / "manifest.json").read_text())
    weights = folder / "model.safetensors"
    assert manifest["files"] == {
        "model.safetensors": {
            "bytes": weights.stat().st_size,
            "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        }
    }
    assert manifest["step"] == 12
    assert manifest["metrics"]["cost"] == json.loads((yard.checkpoints / "final" / "summary.json").read_text())["cost"]
    assert weights.read_bytes() == (yard.checkpoints / "final" / "model.safetensors").read_bytes()
    made = {each["name"]: each for each in yard.report()["artifacts"]}
    assert made["export/safetensors/model.safetensors"]["verified"] is True
    written = weights.stat().st_mtime_ns
    yard.train(config(export={"formats": []}))
    assert weights.stat().st_mtime_ns == written, "a finished run is not exported again"
    again = {each["name"]: each for each in yard.report()["artifacts"]}
    assert again == made, "a status takes what the newest round tells: what is left out there is gone"


def test_export_of_a_checkpoint_measures_these_very_weights(yard):
    yard.train(config(params={"steps": 6, "evalEvery": 3}, checkpoint={"interval": {"steps": 2}}))
    other = yard.root / "other"
    shutil.move(yard.checkpoints, other)
    place = str(other / "step-00000004")
    yard.train(in_mode("eval", checkpoint={"resumeFrom": place}))
    measured = yard.report()["metrics"]["cost"]
    yard.train(in_mode("export", checkpoint={"resumeFrom": place}, export={"verify": False}), world=2)
    manifest = json.loads((yard.checkpoints / "export" / "safetensors" / "manifest.json").read_text())
    assert manifest["step"] == 4
    assert manifest["metrics"]["cost"] == pytest.approx(measured, abs=1e-5)
    assert manifest["verified"] is None
    assert all("verified" not in each for each in yard.report()["artifacts"])


def test_an_export_that_reads_back_other_than_written_is_not_published_and_ends_the_job(yard):
    gang = yard.start(config(export={}), world=2, function=("faults:export_to_a_disk_that_flips_a_bit", []))
    assert gang.wait() == [1, 1], gang.output()
    assert "safetensors: " in yard.failure()["message"]
    assert "read back differently than written" in yard.failure()["message"]
    assert not (yard.checkpoints / "export" / "safetensors").exists()
    assert {"name": "export/safetensors", "verified": False} in yard.report()["artifacts"]
    yard.train(config(export={}), world=2)
    assert (yard.checkpoints / "export" / "safetensors" / "manifest.json").exists()
    assert min(yard.losses()) == 1
    assert len(yard.metrics()) == 12, "the next round only exports"


def test_a_format_the_workload_does_not_offer_is_refused_before_anything_is_trained(yard):
    gang = yard.start(config(export={"formats": ["hf"]}))
    assert gang.wait() == [64]
    assert "export.formats: hf is not offered by this workload" in yard.failure()["message"]
    assert not yard.checkpoints.exists() or not list(yard.checkpoints.glob("metrics.jsonl"))


def test_a_page_that_would_be_too_large_is_refused_before_anything_is_trained(yard):
    gang = yard.start(config(params={"embedding": 128, "layers": 3}, export={"formats": ["web"]}), world=2)
    assert gang.wait() == [64, 64], gang.output()
    assert "Traceback" not in gang.output()
    assert gang.output().count("make trainer.params.embedding (or layers) smaller") == 1, "rank 0 says it for all"
    assert not yard.checkpoints.exists()


def test_an_unknown_mode_names_those_there_are(yard):
    gang = yard.start(in_mode("bnech"))
    assert gang.wait() == [64]
    assert "use one of train, eval, bench, export, preflight" in yard.failure()["message"]
