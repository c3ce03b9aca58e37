"""How real gangs end: exit codes, files left behind, checkpoints passed over."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.support.trainers.gangs import TINY, Yard, config, free_port, until
from tests.support.waiting import DEADLINE

from torchyard_trainers.core.exits import Exit, exit_code
from torchyard_trainers.core.export import weights

pytestmark = pytest.mark.e2e

SLOW = {"steps": 100_000, "evalEvery": 100_000}


def test_done_leaves_weights_a_summary_curves_and_a_last_report(yard):
    yard.train(config(logging={"tensorboard": True}), world=2)
    root = yard.checkpoints
    summary = json.loads((root / "final" / "summary.json").read_text())
    assert summary["costUntrained"] > 0
    assert f"{summary['costSavings']:.3f}" in summary["text"]
    assert json.loads((root / "DONE").read_text())["step"] == 12
    assert (root / "latest").read_text().strip() == "step-00000012"
    assert list((root / "tensorboard").glob("events.out.tfevents.*"))
    report = yard.report(1)
    assert report["saves"] is True
    assert (report["rank"], report["step"], report["totalSteps"], report["phase"]) == (1, 12, 12, "drain")
    assert report["checkpoint"]["bytes"] > 0
    assert {"loss", "cost", "costNearest", "gapSavingsPercent"} <= report["metrics"].keys()


def test_a_finished_run_that_is_started_again_ends_at_once_and_lists_its_results(yard):
    yard.train(config())
    before, made = (yard.checkpoints / "DONE").stat().st_mtime_ns, yard.report(0)["artifacts"]
    assert "model.safetensors" in {artifact["name"] for artifact in made}
    yard.train(config())
    assert (yard.checkpoints / "DONE").stat().st_mtime_ns == before
    assert yard.report(0)["artifacts"] == made


def test_a_line_of_the_curves_that_was_cut_short_costs_no_other_line_and_ends_no_run(yard):
    yard.train(config(params={"steps": 6}))
    curves = yard.checkpoints / "metrics.jsonl"
    torn = '{"step": 7, "lo'
    curves.write_text(curves.read_text() + torn)
    yard.train(config())
    lines = curves.read_text().splitlines()
    lines.remove(torn)
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 13))
    assert (yard.checkpoints / "DONE").exists()


def test_asked_to_stop_all_ranks_save_the_same_step_and_exit_75(yard):
    gang = yard.start(config(params=SLOW), world=3)
    until((yard.checkpoints / "metrics.jsonl").exists)
    (yard.run_dir / "preempt").touch()
    assert gang.wait() == [75, 75, 75], gang.output()
    saved = {int((yard.run_dir / f"saved.{rank}").read_text()) for rank in range(3)}
    assert saved == {yard.committed()[-1]}  # one that was due by time may come before
    assert len(saved) == 1
    assert not list(yard.run_dir.glob("failure.*"))


def test_a_config_error_ends_with_64_and_one_message(yard):
    gang = yard.start(config(params={"customers": 0}), world=2)
    assert gang.wait() == [64, 64]
    assert gang.output().count("trainer.params.customers: expected `int` >= 2 (is 0)") == 1
    assert yard.failure(1)["code"] == 64


@pytest.mark.parametrize("visible", ["", "-1"])
def test_cuda_never_falls_back(yard, visible):
    gang = yard.start(config() | {"device": "cuda"}, env={"CUDA_VISIBLE_DEVICES": visible})
    assert gang.wait() == [64]
    assert "device: cuda" in gang.output()
    assert "gpusPerNode" in gang.output()


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_job_that_asks_for_gpus_never_trains_without_them(yard, device):
    gang = yard.start(config() | {"device": device}, env={"TORCHYARD_GPUS": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert gang.wait() == [68]
    assert "the job asks for 1 GPU(s) in each pod, but " in yard.failure()["message"]


def test_single_with_two_processes_is_a_config_error(yard):
    assert yard.start(config(parallelism={"strategy": "single"}), world=2).wait() == [64, 64]
    assert "parallelism.strategy: single runs one process, but there are 2" in yard.failure(0)["message"]


def test_other_data_than_the_checkpoint_ends_with_65_and_names_the_field(yard):
    yard.train(config(params={"steps": 2}), world=2)
    gang = yard.start(config(params={"seed": 8}), world=2)
    assert gang.wait() == [65, 65]
    assert "trainer.params.seed is 8 but was 7" in yard.failure()["message"]
    gang = yard.start(config(params={"heads": 4}))
    assert gang.wait() == [65]
    assert "trainer.params.heads is 4 but was 2" in yard.failure()["message"]
    gang = yard.start(config(params={"layers": 2}))
    assert gang.wait() == [65]
    assert "other shapes" in yard.failure()["message"]


def test_a_loss_that_is_not_finite_ends_with_66_on_every_rank_before_it_reaches_the_weights(yard):
    yard.train(config(params={"steps": 3}), world=2)
    poison(yard)
    gang = yard.start(config(), world=2)
    assert gang.wait() == [66, 66], gang.output()
    assert "step 4: loss nan" in yard.failure()["message"]
    assert yard.committed()[-1] == 3


def poison(yard):
    """Put a NaN into the weights of the newest checkpoint, as bad hardware would, digests and all."""
    code = """
import sys, pathlib, torch
from torchyard_trainers.core.checkpoints import commits, shards
from torchyard_trainers.core.world import World
from torchyard_trainers.core.checkpoints.storage import Reader
folder = pathlib.Path(sys.argv[1])
world = World(0, 1, 0, torch.device("cpu"), grouped=False)
reader = Reader(folder / "dcp")
state = {name: torch.empty(entry.size, dtype=entry.properties.dtype) if hasattr(entry, "size") else None
         for name, entry in reader.read_metadata().state_dict_metadata.items()}
shards.DcpShards(world).load(state, folder / "dcp")
state["model.decoder.glimpse.weight"][0, 0] = float("nan")
for path in (folder / "dcp").iterdir():
    path.unlink()
shards.DcpShards(world).save(state, folder / "dcp")
names = ["state.json", *(f"dcp/{p.name}" for p in (folder / "dcp").iterdir())]
facts = commits.read_commit(folder)
facts.pop("files"); facts.pop("schema")
commits.commit(folder, {name: commits.digest(folder / name) for name in names}, facts)
"""
    newest = yard.checkpoints / f"step-{yard.committed()[-1]:08d}"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, newest], check=True)


def test_broken_checkpoints_are_skipped_and_reported(yard):
    yard.train(config(params={"steps": 9, "lrFinal": 1e-3}, checkpoint={"interval": {"steps": 3}}))
    expected = yard.losses()
    assert yard.committed() == [3, 6, 9]
    shard = next((yard.checkpoints / "step-00000009" / "dcp").glob("*.bin"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    (yard.checkpoints / "step-00000006" / "COMMIT").unlink()
    (yard.checkpoints / "DONE").unlink()
    yard.train(config(params={"steps": 9, "lrFinal": 1e-3}), world=2)
    first, second = yard.report()["warnings"]
    assert "step-00000009" in first
    assert "digest differs" in first
    assert "step-00000006: no COMMIT" in second
    assert yard.losses() == pytest.approx(expected, abs=1e-5)


@pytest.fixture
def disk(yard, request):
    """A checkpoint volume that is mounted with these options."""
    yard.checkpoints.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", request.param, "none", yard.checkpoints]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("a disk cannot be mounted here: run as root, on Linux")
    yield
    subprocess.run(["umount", "--lazy", yard.checkpoints], check=True)


@pytest.mark.parametrize("disk", ["ro"], indirect=True)
@pytest.mark.usefixtures("disk")
def test_a_read_only_volume_ends_with_74_and_is_named(yard):
    gang = yard.start(config())
    assert gang.wait() == [74], gang.output()
    assert "Read-only file system" in yard.failure()["message"]
    assert str(yard.checkpoints) in yard.failure()["message"]


@pytest.mark.parametrize("disk", ["size=64k"], indirect=True)
@pytest.mark.usefixtures("disk")
def test_a_full_disk_ends_with_74_on_every_rank_after_retries(yard):
    gang = yard.start(config(params={"embedding": 64}, checkpoint={"interval": {"steps": 1}}), world=2)
    assert gang.wait() == [74, 74], gang.output()
    assert "No space left on device; free space or repair the volume" in yard.failure(1)["message"]
    assert yard.committed() == []


@pytest.mark.parametrize("disk", ["size=64k"], indirect=True)
@pytest.mark.usefixtures("disk")
def test_weights_that_do_not_fit_are_a_storage_error_with_the_volumes_message(yard):
    with pytest.raises(OSError, match="No space left on device") as refused:
        weights.save({"large": torch.zeros(100_000)}, yard.checkpoints / weights.FILE)
    assert exit_code(refused.value) is Exit.STORAGE


def test_with_no_readable_checkpoint_left_nothing_is_trained_over_it(yard):
    yard.train(config(params={"steps": 3}))
    (yard.checkpoints / "step-00000003" / "state.json").write_text("{}")
    gang = yard.start(config(), world=2)
    assert gang.wait() == [67, 67]
    assert "step-00000003: state.json has 2 bytes" in yard.failure()["message"]


def test_a_gang_left_behind_by_a_newer_round_stops_with_76_and_commits_nothing(yard):
    gang = yard.start(config(params=SLOW, checkpoint={"interval": {"steps": 5}}), world=2)
    until(lambda: len(yard.committed()) >= 2)
    (yard.checkpoints / "round.lock").write_text("99 job-1\n")
    assert gang.wait() == [76, 76], gang.output()
    assert yard.failure()["secondary"] is True
    before = yard.committed()
    gang = yard.start(config(params=SLOW))
    assert gang.wait() == [76]
    assert yard.committed() == before


def test_only_the_newest_checkpoints_are_kept(yard):
    yard.train(config(checkpoint={"interval": {"steps": 2}, "keepLast": 2}))
    assert yard.committed() == [10, 12]


def test_the_best_model_is_saved_when_it_is_measured_and_outlives_worse_ones(yard):
    def settings(steps):
        checkpoint = {"interval": {"steps": 1000}, "keepLast": 1, "keepBest": 1}
        params = {"steps": steps, "lr": 0.05, "lrFinal": 0.05, "evalEvery": 1000}
        return config(params=params, checkpoint=checkpoint, evaluation={"everySteps": 3})

    yard.train(settings(9), world=2)
    yard.train(settings(18))
    costs = {entry["step"]: entry["cost"] for entry in yard.metrics() if "cost" in entry}
    best = min(costs, key=costs.get)
    assert [*costs] == [3, 6, 9, 12, 15, 18]
    assert best != 18, "a run whose last model is its best would prove nothing"
    assert yard.committed() == [best, 18]
    assert yard.record(best)["score"] == pytest.approx(costs[best])


def test_a_run_can_start_from_another_folder_and_that_one_must_be_readable(yard):
    yard.train(config(params={"steps": 6, "lrFinal": 1e-3}))
    elsewhere = yard.root / "elsewhere"
    shutil.move(yard.checkpoints, elsewhere)
    yard.train(config(params={"lrFinal": 1e-3}, checkpoint={"resumeFrom": str(elsewhere / "step-00000006")}))
    assert min(yard.losses()) == 7
    assert (elsewhere / "DONE").exists()
    shutil.rmtree(yard.checkpoints)
    nothing = yard.root / "nothing"
    gang = yard.start(config(checkpoint={"resumeFrom": str(nothing)}))
    assert gang.wait() == [67]
    told = f"checkpoint.resumeFrom: {nothing} holds no readable checkpoint; name a job that has trained here"
    assert told in yard.failure()["message"]


def test_eval_measures_the_newest_checkpoint_and_touches_nothing(yard):
    yard.train(config())
    trained = json.loads((yard.checkpoints / "final" / "summary.json").read_text())
    before = {path: path.stat().st_mtime_ns for path in yard.checkpoints.rglob("*")}
    settings = config()
    yard.train(settings | {"trainer": settings["trainer"] | {"mode": "eval"}}, world=2)
    assert yard.report()["saves"] is False
    assert yard.report()["metrics"]["cost"] == pytest.approx(trained["cost"], abs=1e-5)
    assert {path: path.stat().st_mtime_ns for path in yard.checkpoints.rglob("*")} == before


def test_eval_without_a_checkpoint_ends_with_67(yard):
    settings = config()
    gang = yard.start(settings | {"trainer": settings["trainer"] | {"mode": "eval"}})
    assert gang.wait() == [67]


@pytest.mark.parametrize(
    ("precision", "strategy", "world"),
    [("bf16", "single", 1), ("bf16", "fsdp", 2), ("fp16", "ddp", 2), ("fp16", "fsdp", 2)],
)
def test_mixed_precision_trains_with_every_strategy_and_resumes_itself(yard, tmp_path, precision, strategy, world):
    def settings(steps):
        return config(
            params={"steps": steps, "lrFinal": 1e-3},
            parallelism={"precision": precision, "strategy": strategy, "microBatchSize": 3},
        )

    yard.train(settings(2), world)
    before = yard.weights()
    yard.train(settings(4), world)
    assert yard.weights() != before
    assert yard.record(4)["precision"] == precision
    exact = Yard(yard.server, tmp_path / "exact")
    exact.root.mkdir()
    exact.train(config(params={"steps": 1, "lrFinal": 1e-3}))
    assert yard.losses().keys() == {1, 2, 3, 4}
    # A rounded likelihood tips a choice here and there, and a loss of few routes is made of their differences.
    first, expected = yard.metrics()[0], exact.metrics()[0]
    assert first["trainCost"] == pytest.approx(expected["trainCost"], rel=0.05)


def test_a_worker_writes_its_stacks_on_request_and_continues(yard):
    gang = yard.start(config(params=SLOW))
    until(lambda: (yard.run_dir / "report.0.json").exists() and yard.report()["step"] >= 1)
    os.kill(gang.pids[0], signal.SIGUSR2)
    until(lambda: "in train" in gang.output())
    before = yard.report()["step"]
    until(lambda: yard.report()["step"] > before)
    (yard.run_dir / "preempt").touch()
    assert gang.wait() == [75], gang.output()


def test_plain_torchrun_needs_nothing_but_a_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"trainer": {"name": "cvrp", "params": TINY}}))
    torchrun = Path(sys.executable).with_name("torchrun")
    command = [torchrun, "--nproc-per-node", "2", "--master-port", str(free_port()), "-m", "torchyard_trainers"]
    done = subprocess.run(
        [*command, "--config", "config.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "checkpoints" / "DONE").exists()
    assert "step 12/12  100%  loss=" in done.stdout
    assert "leaked" not in done.stderr, "what libraries write of objects that are alive when Python ends"
