"""Errors of GPUs, from an NVML that the test compiles: the real agent ends a round by them, or explains its end."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from torchyard_agent.telemetry.gpu_health import FATAL, PROGRAM, SUSPECT, fault_of_xid

WAITING = "import time\nprint('waiting', flush=True)\ntime.sleep(600)\n"
RAISED = "CUDA error: unspecified launch failure"
FAILING = f"""
import os
print("waiting", flush=True)
open(os.environ["GATE"]).read()
raise RuntimeError("{RAISED}")
"""


@pytest.fixture(scope="session")
def nvml(tmp_path_factory) -> Path:
    """The folder of `libnvidia-ml.so.1`."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: apt-get install gcc")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).parents[1] / "support/agents/fake_nvml.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


@pytest.fixture
def events(tmp_path) -> Path:
    """The FIFO by which errors reach the driver."""
    path = tmp_path / "events"
    os.mkfifo(path)
    return path


@pytest.fixture
def gpu_pod(pod, script, nvml, events):
    """Start an agent on a machine with two GPUs, and a program."""

    def start(program, **env):
        one = pod("python3", script(program), LD_LIBRARY_PATH=str(nvml), FAKE_NVML=str(events), **env)
        assert [gpu["uuid"] for gpu in one.ready()["gpus"]] == ["GPU-fake-0", "GPU-fake-1"]
        one.run()
        return one

    return start


def emit(events: Path, line: str) -> None:
    with events.open("w") as fifo:
        fifo.write(f"{line}\n")


@pytest.mark.e2e
@pytest.mark.parametrize("gpus", [0, 2])
def test_torch_is_imported_while_a_driver_of_gpus_that_the_job_asks_for_starts(
    pod, script, nvml, events, until, *, gpus
):
    env = {"LD_LIBRARY_PATH": str(nvml), "FAKE_NVML": str(events), "TORCHYARD_GPUS": str(gpus), "TORCHYARD_PROCS": "1"}
    pod("torchrun", script("pass"), **env)
    children = events.with_name("events.children")
    until(children.exists)
    assert bool(children.read_text()) == (gpus > 0), "without a number in the job, the driver is asked first"


@pytest.mark.e2e
def test_a_gpu_that_falls_off_the_bus_ends_the_round_and_is_named(gpu_pod, events):
    one = gpu_pod(WAITING)
    one.until_it_says("waiting")
    emit(events, "1 79")
    ended = one.ended()
    assert (ended["code"], ended["asked"], ended["failure"]["classified"]) == (68, False, True)
    assert ended["failure"]["message"] == "GPU 1 (GPU-fake-1): XID 79, the GPU has fallen off the bus"
    one.run()
    one.until_it_says("waiting")
    assert one.status()["state"] == "running", "an error of the round before ends no later one"


SURVIVED = {
    "0 94": (68, "GPU 0 (GPU-fake-0): XID 94, contained ECC error in GPU memory"),
    "0 31": (1, f"{RAISED}; GPU 0 (GPU-fake-0): XID 31, access to GPU memory that is not mapped"),
}


@pytest.mark.e2e
@pytest.mark.parametrize("line", SURVIVED, ids=["hardware", "program"])
def test_an_error_that_the_program_survives_explains_its_failure(gpu_pod, events, until, line):
    gate = events.with_suffix(".gate")
    os.mkfifo(gate)
    one = gpu_pod(FAILING, GATE=str(gate))
    one.until_it_says("waiting")
    emit(events, line)
    until(events.with_suffix(".seen").exists)
    with gate.open("w"):
        pass
    ended = one.ended()
    assert (ended["code"], ended["failure"]["message"]) == SURVIVED[line]


def test_every_error_has_one_meaning():
    assert len(FATAL.keys() | SUSPECT.keys() | PROGRAM.keys()) == len(FATAL) + len(SUSPECT) + len(PROGRAM)
    unknown = fault_of_xid(999, -1, "", 5.0)
    assert (unknown.message, unknown.hardware, unknown.fatal) == ("a GPU: XID 999", False, False)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("lost", "GPU 1 is lost: the driver does not reach it"),
        ("rows", "GPU 0: a broken row of its memory could not be replaced"),
    ],
)
def test_a_gpu_that_breaks_between_two_readings_ends_the_round(gpu_pod, events, file, message):
    one = gpu_pod(WAITING)
    one.until_it_says("waiting")
    events.with_suffix(f".{file}").touch()
    ended = one.ended()
    assert (ended["code"], ended["failure"]["message"]) == (68, message)
