"""What a built-in trainer writes into its report file is what the operator reads out of it."""

import hashlib
import json

import msgspec

from torchyard.agents import sanitize
from torchyard.api.status import Artifact, NonFiniteMetric
from torchyard.reconcile.observed import RankReport
from torchyard_trainers.core.report import Reporter


def test_every_field_a_trainer_reports_reaches_the_operator(tmp_path):
    reporter = Reporter(tmp_path, rank=3, local_rank=1, round_number=4, period=60.0).start()
    reporter.phase("step")
    reporter.progress(120, 500, epoch=2.5)
    reporter.metrics({"loss": 1.5, "gap": float("inf")})
    reporter.throughput({"stepsPerSecond": 3.0, "samplesPerSecond": 768.0})
    saved = {"step": 100, "time": 1763706000.0, "path": "/x/step-00000100", "bytes": 12345, "saveSeconds": 0.2}
    reporter.checkpoint(saved)
    reporter.warn("the learning rate is high")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    reporter.artifact("model.safetensors", weights)
    reporter.artifact("export/onnx/policy.onnx", weights, verified=True)
    reporter.refused("export/web")
    reporter.stop()
    written = json.loads((tmp_path / "report.1.json").read_text())

    read = sanitize.report(written)

    assert isinstance(read, RankReport)
    assert (read.round, read.rank, read.local_rank) == (4, 3, 1)
    assert (read.step, read.total_steps, read.epoch, read.phase) == (120, 500, 2.5, "step")
    assert read.metrics == {"loss": 1.5}
    assert read.non_finite_metrics == {"gap": NonFiniteMetric(value="Infinity", step=120)}
    assert read.throughput == {"stepsPerSecond": 3.0, "samplesPerSecond": 768.0}
    assert read.checkpoint == saved
    assert read.warnings == ("the learning rate is high",)
    assert read.artifacts == (
        Artifact(
            name="model.safetensors",
            uri=str(weights),
            sha256=hashlib.sha256(b"weights").hexdigest(),
            bytes=len(b"weights"),
        ),
        Artifact(
            name="export/onnx/policy.onnx",
            uri=str(weights),
            sha256=hashlib.sha256(b"weights").hexdigest(),
            bytes=len(b"weights"),
            verified=True,
        ),
        Artifact(name="export/web", verified=False),
    )
    assert read == sanitize.well_formed_report(msgspec.Raw(msgspec.json.encode(written)))
    assert read.counter == written["counter"] > 0
    assert read.time == written["time"]
    assert read.phase_since == written["phaseSince"]


def test_a_program_that_knows_only_round_rank_and_step_is_understood():
    assert sanitize.report({"round": 1, "rank": 0, "step": 7}) == RankReport(round=1, rank=0, step=7)
