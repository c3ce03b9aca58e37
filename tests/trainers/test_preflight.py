"""Preflight: every rank and everything between them is tried for real; what is wrong comes with ranks and a fix."""

import errno
import json
import os

import pytest
import torch
from tests.support.trainers.gangs import config

from torchyard_trainers.core.exits import ConfigError, HardwareError
from torchyard_trainers.core.modes.preflight import as_error, collect, figures
from torchyard_trainers.core.preflight import checks
from torchyard_trainers.core.preflight.checks import Finding
from torchyard_trainers.core.world import World


@pytest.fixture
def alone():
    return World(rank=0, size=1, local_rank=0, device=torch.device("cpu"), grouped=False)


def mode(name, **sections):
    settings = config(**sections)
    return settings | {"trainer": settings["trainer"] | {"mode": name}}


@pytest.mark.e2e
def test_a_preflight_of_two_healthy_ranks_reports_figures(yard):
    yard.train(mode("preflight"), world=2)
    found = yard.report()["metrics"]
    assert found.keys() >= {
        *("teraflopsPerSecond", "allReduceBytesPerSecond", "storageWriteBytesPerSecond", "storageReadBytesPerSecond"),
    }
    assert all(value > 0 for value in found.values())
    assert sorted(path.name for path in yard.checkpoints.iterdir()) == ["DONE"]


@pytest.mark.e2e
def test_a_job_that_trains_is_checked_before_its_first_round_only(yard):
    settings = config(params={"steps": 6}, preflight=True, checkpoint={"interval": {"steps": 2}})
    yard.train(settings, world=2)
    assert "ok    all-reduce over gloo" in (yard.root / "round-1-rank-0.log").read_text()
    yard.train(settings | {"trainer": config()["trainer"]}, world=2)
    assert "all-reduce" not in (yard.root / "round-2-rank-0.log").read_text()


@pytest.mark.e2e
def test_a_checkpoint_folder_that_cannot_be_written_ends_with_64_and_a_fix(yard):
    yard.checkpoints.write_text("a file where a folder should be")
    gang = yard.start(mode("preflight"), world=2)
    assert gang.wait() == [64, 64]
    assert "checkpoint.volume" in yard.failure()["message"]


def test_wrong_matrix_products_are_a_hardware_error(alone, tmp_path, monkeypatch):
    honest = torch.Tensor.__matmul__

    def broken(left, right):
        product = honest(left, right)
        if product.dtype == torch.float32:
            product[3, 5] += 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", broken)
    (found,) = checks.device(alone, tmp_path)
    assert found.hardware
    assert "wrong" in found.fault


def test_a_volume_that_returns_other_bytes_is_a_hardware_error(alone, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "_write_and_read", lambda _path, _data: (1.0, 1.0, False))
    (found,) = checks.storage(alone, tmp_path)
    assert found.hardware
    assert "other bytes" in found.fault


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.EACCES, (False, "fsGroup")),
        (errno.ENOSPC, (False, "free space")),
        (errno.EIO, (True, "test the volume")),
    ],
)
def test_a_fault_of_storage_that_a_person_can_fix_is_no_fault_of_hardware(alone, tmp_path, monkeypatch, number, told):
    hardware, fix = told

    def refuse(_path, _data):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(checks, "_write_and_read", refuse)
    (found,) = checks.storage(alone, tmp_path)
    assert (found.hardware, os.strerror(number) in found.fault, fix in found.fix) == (hardware, True, True)


def test_the_verdict_names_ranks_hosts_and_fix_and_hardware_weighs_more():
    shm = Finding("", fault="/dev/shm is full", fix="raise resources.shm")
    gpu = Finding("", fault="wrong sums", fix="drain the node", hardware=True)
    faults = collect([(0, "a", shm), (1, "a", shm), (2, "b", gpu), (3, "b", Finding("well"))])
    error = as_error(faults)
    assert isinstance(error, HardwareError)
    assert str(error) == (
        "preflight: rank 2 on b: wrong sums; drain the node | ranks 0, 1 on a: /dev/shm is full; raise resources.shm"
    )
    assert isinstance(as_error(faults[:1]), ConfigError)


def test_a_rate_is_that_of_the_slowest_rank():
    told = [[Finding("", {"storageWriteBytesPerSecond": 5.0})], [Finding("", {"storageWriteBytesPerSecond": 3.0})]]
    assert figures(told) == {"storageWriteBytesPerSecond": 3.0}


@pytest.mark.e2e
def test_ranks_with_different_versions_get_the_advice_to_use_one_image(yard):
    gang = yard.start(mode("preflight"), world=2, function=("faults:preflight_with_versions", [["2.13.0", "2.15.0"]]))
    codes = gang.wait()
    assert codes == [64, 64], gang.output()
    message = json.loads((yard.run_dir / "failure.1.json").read_text())["message"]
    assert "torch 2.13.0, 2.15.0" in message
    assert "use one image" in message
