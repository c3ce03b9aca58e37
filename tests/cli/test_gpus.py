"""`torchyard gpus`: what NVML says as a table, as a document, as a choice. NVML alone is played."""

import json

import pytest

from torchyard.cli.commands.gpus import UNCOUNTED

NVML = """
class NVMLError(Exception): pass
class NVMLError_NotSupported(NVMLError): pass
class NVMLError_NotFound(NVMLError): pass
NVML_DEVICE_MIG_ENABLE = 1
class Memory:
    def __init__(self, used): self.total, self.used = 80 * 2**30, used * 2**30
class Rates:
    def __init__(self, gpu): self.gpu = gpu
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlSystemGetDriverVersion(): return "580.95.05"
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetMigMode(handle): raise NVMLError_NotSupported
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}"
def nvmlDeviceGetName(handle): return "NVIDIA H100 80GB HBM3"
def nvmlDeviceGetMemoryInfo(handle): return Memory(70 - 60 * handle)
def nvmlDeviceGetUtilizationRates(handle): return Rates(95 - 90 * handle)
def nvmlDeviceGetCudaComputeCapability(handle): return [9, 0]
"""


@pytest.fixture
def machine(torchyard, tmp_path):
    """A machine with two GPUs, the first one busy."""
    (tmp_path / "pynvml.py").write_text(NVML)
    torchyard.env["PYTHONPATH"] = f"{tmp_path}:{torchyard.env.get('PYTHONPATH', '')}"
    torchyard.env.pop("CUDA_VISIBLE_DEVICES", None)
    return torchyard


def test_the_table(machine):
    assert machine("gpus").stdout == (
        "GPU  PRODUCT                MEMORY         BUSY  CC   UUID\n"
        "0    NVIDIA H100 80GB HBM3  70.0/80.0 GiB  95 %  9.0  GPU-0\n"
        "1    NVIDIA H100 80GB HBM3  10.0/80.0 GiB  5 %   9.0  GPU-1\n"
    )


def test_a_choice_as_a_document(machine):
    found = json.loads(machine("gpus", "--select", 1, "--min-free-memory", "40Gi", "-o", "json").stdout)
    assert [gpu["uuid"] for gpu in found["gpus"]] == ["GPU-1"]
    assert found["driver"] == "580.95.05"


def test_how_many_train_a_model(machine):
    assert machine("gpus", "--fit", "7B").stdout.splitlines()[-2:] == [
        "2 GPUs with strategy fsdp: 104.3 GiB of weights, gradients and optimizer state",
        UNCOUNTED,
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--select", 2, "--min-free-memory", "40Gi"], "min_free_memory 40.0 GiB: 1 of 2 GPUs are so, 2 are needed"),
        (["--product", "L4"], "--product is a condition of --select; add --select N"),
        (["--select", 1, "--min-free-memory", "40 Gigs"], "not a size; write it like 40Gi"),
        (["--select", 1, "--product", "("], "not a regular expression"),
        (["--fit", "seven"], "write it like 350M or 7B"),
        (["--fit", "inf"], "write it like 350M or 7B"),
        (["--fit", "70B"], "need 16 GPUs with 80 GiB, but there are 2"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(machine, words, says):
    refused = machine("gpus", *words)
    assert (refused.returncode, says in refused.stderr) == (64, True), refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_machine_without_a_driver(torchyard):
    torchyard.env["CUDA_VISIBLE_DEVICES"] = ""
    assert torchyard("gpus").stdout.startswith("no GPU")
