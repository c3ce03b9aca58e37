"""The modes of `vecrl` as real gangs run them: what training made is measured, written in other formats, and timed."""

import json

import pytest
from tests.trainers.test_vecrl_equality import settings

pytestmark = pytest.mark.e2e


def in_mode(mode, rollouts=3, **sections):
    given = settings(rollouts, **sections)
    return given | {"trainer": given["trainer"] | {"mode": mode}}


def test_eval_measures_what_training_measured_at_its_end(yard):
    yard.train(settings())
    trained = yard.report()["metrics"]["evalReturn"]
    (yard.checkpoints / "DONE").unlink()
    before = {path: path.stat().st_mtime_ns for path in yard.checkpoints.glob("step-*/*")}
    yard.train(in_mode("eval"), world=2)
    assert yard.report()["metrics"]["evalReturn"] == pytest.approx(trained)
    assert yard.report()["step"] == 12
    assert {path: path.stat().st_mtime_ns for path in yard.checkpoints.glob("step-*/*")} == before


def test_eval_needs_not_as_many_environments_as_training_had_but_the_same_kind(yard):
    yard.train(settings())
    trained = yard.report()["metrics"]["evalReturn"]
    (yard.checkpoints / "DONE").unlink()
    fewer = in_mode("eval")
    fewer["trainer"]["params"] |= {"environments": 4}
    yard.train(fewer)
    assert yard.report()["metrics"]["evalReturn"] == pytest.approx(trained)
    fewer["trainer"]["params"] |= {"environment": "bandit"}
    assert yard.start(fewer).wait() == [65]
    assert "trainer.params.environment is 'bandit' but was 'cartpole'" in yard.failure()["message"]


def test_a_trained_checkpoint_is_exported_in_every_format_and_each_reads_back_equal(yard):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install torchyard[export]")
    formats = ["onnx", "pt2", "web"]
    yard.train(settings())
    (yard.checkpoints / "DONE").unlink()
    yard.train(in_mode("export", export={"formats": formats}))
    for form in ("safetensors", *formats):
        manifest = json.loads((yard.checkpoints / "export" / form / "manifest.json").read_text())
        assert manifest["step"] == 12
        assert manifest["verified"] is not None
        assert manifest["metrics"]["evalReturn"] == pytest.approx(yard.report()["metrics"]["evalReturn"])
    made = {each["name"]: each.get("verified") for each in yard.report()["artifacts"]}
    assert all(made[f"export/{form}/manifest.json"] for form in formats)


def test_bench_reports_environment_steps_and_keeps_no_checkpoint(yard):
    yard.train(in_mode("bench", 30), world=2)
    found = json.loads((yard.checkpoints / "bench.json").read_text())
    assert found["figures"]["envStepsPerSecond"] > 0
    assert found["figures"]["samplesPerSecond"] == pytest.approx(10 * found["figures"]["stepsPerSecond"])
    assert not yard.committed()
