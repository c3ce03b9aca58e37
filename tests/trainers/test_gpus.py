"""Choosing GPUs: by what NVML says, by UUID, before CUDA starts. NVML alone is played, function by function."""

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from torchyard_trainers.core import gpus
from torchyard_trainers.core.gpus import NoGpuError
from torchyard_trainers.core.memory import fit

GIB = 2**30


class Nvml(ModuleType):
    """The functions of pynvml that are called, over boards a test describes."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
        pass

    class NVMLError_NotFound(NVMLError):  # noqa: N801, N818
        pass

    def __init__(self, boards, *, driver=True):
        super().__init__("pynvml")
        self.boards = boards
        self.driver = driver
        self.opened = 0

    def nvmlInit(self):
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self):
        return "580.95.05"

    def nvmlDeviceGetCount(self):
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.boards[index].get("closed"):
            raise self.NVMLError("Insufficient Permissions")
        return self.boards[index]

    def nvmlDeviceGetMigMode(self, board):
        if "slices" not in board:
            raise self.NVMLError_NotSupported
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, board):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, board, place):
        if place >= len(board["slices"]):
            raise self.NVMLError_NotFound
        return board["slices"][place]

    def nvmlDeviceGetUUID(self, board):
        return board["uuid"]

    def nvmlDeviceGetName(self, board):
        return board["name"].encode()

    def nvmlDeviceGetMemoryInfo(self, board):
        return SimpleNamespace(total=board["total"] * GIB, used=board["used"] * GIB)

    def nvmlDeviceGetUtilizationRates(self, board):
        if board.get("busy") is None:
            raise self.NVMLError_NotSupported
        return SimpleNamespace(gpu=board["busy"])

    def nvmlDeviceGetCudaComputeCapability(self, board):
        return board["capability"]


def board(letter, name="NVIDIA H100 80GB HBM3", *, used=0, busy=0, total=80, capability=(9, 0), **more):
    uuid = f"GPU-{letter * 8}-0000"
    return {"uuid": uuid, "name": name, "total": total, "used": used, "busy": busy, "capability": capability, **more}


@pytest.fixture
def machine(monkeypatch):
    def of(*boards, **settings):
        nvml = Nvml(list(boards), **settings)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return of


def letters(found):
    return "".join(gpu.uuid[4] for gpu in found)


def test_the_findings_of_nvml_are_reported_and_nvml_is_closed_again(machine):
    nvml = machine(board("a", used=10, busy=35))
    (gpu,) = gpus.available()
    assert gpu == gpus.Gpu(0, "GPU-aaaaaaaa-0000", "NVIDIA H100 80GB HBM3", 80 * GIB, 10 * GIB, 35, (9, 0))
    assert gpus.info("GPU-aaaa") == gpu
    assert gpus.memory_usage() == {gpu.uuid: (10 * GIB, 80 * GIB)}
    assert gpus.driver_version() == "580.95.05"
    assert nvml.opened == 0, "a fork after this must find no open NVML"


def test_without_a_driver_no_gpus_are_found(machine):
    machine(board("a"), driver=False)
    assert gpus.available() == []
    assert gpus.driver_version() is None
    with pytest.raises(NoGpuError, match="this process has 0"):
        gpus.select(1)


def test_a_gpu_that_this_user_may_not_touch_hides_no_other(machine):
    machine(board("a", closed=True), board("b"))
    assert [(gpu.index, gpu.uuid) for gpu in gpus.available()] == [(1, "GPU-bbbbbbbb-0000")]


def test_a_gpu_that_is_divided_into_mig_instances_offers_them(machine):
    part = {"uuid": "MIG-1", "name": "NVIDIA H100 MIG 1g.10gb", "total": 10, "used": 0}
    machine(board("a", slices=[part]), board("b"))
    assert [(gpu.uuid, gpu.utilization) for gpu in gpus.available()] == [("MIG-1", None), ("GPU-bbbbbbbb-0000", 0)]


@pytest.mark.parametrize(("names", "seen"), [("", ""), ("1,0", "ab"), ("GPU-cccc", "c"), ("7", ""), ("-1", "")])
def test_what_is_hidden_from_cuda_is_hidden_here(machine, monkeypatch, names, seen):
    machine(board("a"), board("b"), board("c"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    assert letters(gpus.available()) == seen


@pytest.mark.parametrize(
    ("wish", "chosen"),
    [
        ({}, "c"),
        ({"count": 2}, "cd"),
        ({"order": "index"}, "a"),
        ({"order": "utilization", "count": 2}, "bc"),
        ({"min_total_memory": 70 * GIB, "count": 2}, "ca"),
        ({"min_free_memory": 60 * GIB}, "c"),
        ({"max_utilization": 10, "count": 2}, "cb"),
        ({"min_compute_capability": (9, 0), "order": "index"}, "a"),
        ({"product": "l4"}, "d"),
        ({"ids": ["1", "GPU-aaaa"], "count": 2}, "ab"),
    ],
)
def test_gpus_are_selected_by_conditions_and_order(machine, wish, chosen):
    machine(
        board("a", used=40, busy=90),
        board("b", used=70, busy=0),
        board("c", used=5, busy=5),
        board("d", "NVIDIA L4", total=45, used=0, busy=50, capability=(8, 9)),
    )
    assert letters(gpus.select(**wish)) == chosen


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"count": 3}, "3 GPUs requested, but this process has 2"),
        ({"min_free_memory": 50 * GIB, "count": 2}, r"min_free_memory 50.0 GiB: 1 of 2 GPUs are so, 2 are needed"),
        ({"product": "B200"}, "product 'B200': 0 of 2"),
        ({"ids": ["GPU-x"]}, "ids GPU-x: 0 of 2"),
        ({"min_compute_capability": (10, 0)}, r"min_compute_capability 10\.0: 0 of 2"),
    ],
)
def test_a_choice_that_no_gpu_meets_names_the_condition(machine, wish, says):
    machine(board("a", used=60), board("b"))
    with pytest.raises(NoGpuError, match=says):
        gpus.select(**wish)


def test_a_process_sees_only_what_it_chose_by_uuid_and_before_cuda_starts(machine, monkeypatch):
    machine(board("a"), board("b", used=1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    gpus.setup(gpus.select(2))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-aaaaaaaa-0000,GPU-bbbbbbbb-0000"
    started = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", started)
    with pytest.raises(RuntimeError, match="CUDA has started already"):
        gpus.setup(gpus.available())


def cards(count, gib):
    return [gpus.Gpu(index, f"GPU-{index}", "x", gib * GIB, 0, 0, (9, 0)) for index in range(count)]


@pytest.mark.parametrize(
    ("billions", "count", "gib", "expected"),
    [
        (1.0, 8, 80, (1, "single")),  # 16 GB of state
        (4.5, 8, 80, (1, "single")),  # 72 GB: just within 85 % of 80 GiB
        (4.6, 8, 80, (2, "fsdp")),
        (7.0, 8, 80, (2, "fsdp")),  # 112 GB
        (30.0, 8, 80, (7, "fsdp")),  # 480 GB
        (7.0, 8, 24, (6, "fsdp")),
    ],
)
def test_fit_returns_the_fewest_gpus_that_hold_sixteen_bytes_per_parameter(billions, count, gib, expected):
    found = fit.fit(int(billions * 1e9), gpus=cards(count, gib))
    assert (found.gpus, found.strategy) == expected
    assert found.state_bytes == 16 * int(billions * 1e9)


def test_activations_are_on_every_gpu_and_sharding_does_not_divide_them():
    alone = fit.fit(7_000_000_000, gpus=cards(8, 80))
    with_activations = fit.fit(7_000_000_000, sequence=4096, batch=1, gpus=cards(8, 80))
    # A 7 B model of usual shape: 33 layers of width 4224, 34 bytes a token and unit.
    assert with_activations.activation_bytes == pytest.approx(34 * 32.9 * 4213 * 4096, rel=0.01)
    assert (alone.gpus, with_activations.gpus) == (2, 3)
    with pytest.raises(NoGpuError, match="lower batch or sequence"):
        fit.fit(7_000_000_000, sequence=4096, batch=8, gpus=cards(8, 80))


def test_the_error_for_a_model_that_is_too_large_names_the_number_of_gpus_it_needs():
    with pytest.raises(NoGpuError, match="need 16 GPUs with 80 GiB, but there are 8"):
        fit.fit(70_000_000_000, gpus=cards(8, 80))
    with pytest.raises(ValueError, match="use adamw, momentum, sgd"):
        fit.fit(1, optimizer="adam", gpus=cards(1, 80))
