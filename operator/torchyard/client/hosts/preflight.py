"""What a host must have before a job is sent to it: ask every host at once, and name everything that is missing."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any

from msgspec import Struct, convert

from torchyard.api.launch import worker_command
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.values import size
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.hosts.package import Platform
from torchyard.client.hosts.ssh import Host

MARK = "torchyard-probe:"
LEAST_PYTHON, LEAST_CONTROLLER, MOST_CONTROLLER = (3, 9), (3, 11), (3, 13)
MAX_CLOCK_SECONDS = 60.0
LEAST_FREE_BYTES = 256 * 2**20
TRAINER_MODULES = ("transformers", "safetensors", "numpy")
DEFAULT_HOME = "~/.torchyard"


class Home(Struct, frozen=True):
    """The folder of TorchYard on a host."""

    path: str
    writable: bool
    free: int


class Torch(Struct, frozen=True):
    """What `import torch` and a product of matrices on each GPU showed."""

    version: str = ""
    cuda: str = ""
    gpus: tuple[str, ...] = ()
    error: str = ""


class Probe(Struct, frozen=True):
    """The report of `probe.py`."""

    time: float
    python: tuple[int, int, int]
    executable: str
    system: str
    machine: str
    libc: str
    name: str
    addresses: tuple[str, ...]
    home: Home
    search: tuple[str, ...]
    pythons: tuple[tuple[str, tuple[int, int]], ...]
    uv: str | None
    torchrun: str | None
    driver: tuple[str, ...]
    missing: tuple[str, ...]
    torch: Torch | None = None
    clock_seconds: float = 0.0
    """How much later it is there."""

    @property
    def controller(self) -> tuple[str, tuple[int, int]] | None:
        """Return the Python for the controller, the one of the workers if it can be; None: none fits."""
        fitting = [each for each in self.pythons if LEAST_CONTROLLER <= each[1] <= MOST_CONTROLLER]
        return fitting[0] if fitting else None

    def platform(self, python: tuple[int, int]) -> Platform:
        """Return what compiled files for this host depend on."""
        return Platform(python, self.machine, self.libc)


def probe_all(hosts: list[Host], spec: TrainingJobSpec, python: str, home: str) -> list[Probe]:
    """Ask every host, all at once.

    Args:
        hosts: to ask.
        spec: of the job.
        python: interpreter of the workers on each host.
        home: folder of TorchYard on each host.

    Raises:
        TorchYardError: a host cannot be asked.
    """
    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(lambda host: probe(host, spec, python, home), hosts))


def probe(host: Host, spec: TrainingJobSpec, python: str, home: str) -> Probe:
    """Ask one host."""
    trainer = spec.trainer is not None
    wanted = {
        "torch": needs_torch(spec), "gpus": spec.gpus_per_node, "modules": TRAINER_MODULES if trainer else (),
        "home": home,
    }  # fmt: skip
    program = files("torchyard.client.hosts").joinpath("probe.py").read_bytes()
    before = time.time()
    try:
        printed = host.run_in_login(python, "-", json.dumps(wanted), stdin=program).decode(errors="replace")
    except TorchYardError as error:
        fix = error.fix or f"{python} must start a Python of at least 3.9: name another with --python PATH"
        raise TorchYardError(error.sentence, fix, FAILED) from error
    after = time.time()
    line = next((line for line in reversed(printed.splitlines()) if line.startswith(MARK)), None)
    if line is None:
        fix = f"`ssh {host.name} {python} --version` must print a version; name another with --python PATH"
        raise TorchYardError(f"{host.shown}: {python} did not answer", fix, FAILED)
    report: dict[str, Any] = json.loads(line.removeprefix(MARK))
    skew = max(report["time"] - after, before - report["time"], 0.0)
    return convert({**report, "clock_seconds": skew}, Probe)


def needs_torch(spec: TrainingJobSpec) -> bool:
    """Return whether torchrun starts the workers."""
    return worker_command(spec, "script.py")[0] == "torchrun"


def problems(host: Host, report: Probe, spec: TrainingJobSpec, pods: int, *, creates: bool) -> list[str]:
    """Return everything that keeps a job from running on a host, a sentence with its fix each.

    Args:
        host: that was asked.
        report: its answer.
        spec: of the job.
        pods: of the gang on this host.
        creates: whether an environment is created there, with Python and torch.
    """
    where, found = host.shown, []
    version = ".".join(map(str, report.python))
    if report.system != "Linux":
        found.append(f"{where} runs {report.system}: a host must run Linux")
    if report.clock_seconds > MAX_CLOCK_SECONDS:
        found.append(f"the clock of {where} differs by {report.clock_seconds:.0f} s: set both by NTP")
    if not report.home.writable or report.home.free < LEAST_FREE_BYTES:
        state = f"has {size(report.home.free)} free" if report.home.writable else "cannot be written"
        found.append(f"{where}: {report.home.path} {state}: name another folder with --home DIR")
    if creates:
        if report.uv is None:
            found.append(f"{where} has no uv, which --uv needs: install it there, or leave --uv out")
    else:
        found += _of_python(where, report, spec, version)
    return found + _of_gpus(where, report, spec, pods, creates=creates)


def _of_python(where: str, report: Probe, spec: TrainingJobSpec, version: str) -> list[str]:
    found = []
    if report.python[:2] < LEAST_PYTHON:
        found.append(f"{report.executable} on {where} is Python {version}: name one of at least 3.9 with --python PATH")
    if report.controller is None:
        fix = "install python3.11 or newer beside it, or use --uv, which brings one"
        found.append(f"{where} has no Python 3.11 to 3.13 for the controller ({report.executable} is {version}): {fix}")
    elif spec.trainer is not None and report.python[:2] < LEAST_CONTROLLER:
        found.append(
            f"{report.executable} on {where} is Python {version}, and built-in workloads need 3.11 to 3.13: "
            "name another with --python PATH"
        )
    if report.torch is not None and not report.torch.version:
        fix = f"`{report.executable} -m pip install torch` installs it; or name another with --python PATH, or use --uv"
        found.append(f"{report.executable} on {where} cannot import torch ({report.torch.error}): {fix}")
    if report.missing:
        lacking = " ".join(report.missing)
        fix = f"`{report.executable} -m pip install {lacking}` installs them"
        found.append(
            f"{report.executable} on {where} lacks {', '.join(report.missing)}, which the trainer needs: {fix}"
        )
    return found


def _of_gpus(where: str, report: Probe, spec: TrainingJobSpec, pods: int, *, creates: bool) -> list[str]:
    need = spec.gpus_per_node * pods
    if not need:
        return []
    if not report.driver:
        return [f"{where} has no NVIDIA driver (nvidia-smi finds no GPU): `--gpus-per-node 0` trains on the CPU"]
    if len(report.driver) < need:
        return [f"{where} has {len(report.driver)} GPUs and the job needs {need}: lower gpusPerNode, or add a host"]
    if creates or report.torch is None or not report.torch.version:
        return []
    if report.torch.error or len(report.torch.gpus) < need:
        why = (
            report.torch.error
            or f"torch {report.torch.version} sees {len(report.torch.gpus)} of {len(report.driver)} GPUs"
        )
        driver = report.driver[0].partition(",")[0]
        built = f"CUDA {report.torch.cuda}" if report.torch.cuda else "no CUDA"
        evidence = f"{why}; driver {driver}, torch built for {built}"
        return [f"{where}: a computation on its GPUs fails ({evidence}): install the torch for this driver"]
    return []


def require(hosts: list[Host], reports: list[Probe], spec: TrainingJobSpec, pods: list[int], *, creates: bool) -> None:
    """Check that every host can run its part of the job.

    Raises:
        TorchYardError: it lists everything that is missing, on all hosts.
    """
    found = [
        problem
        for host, report, count in zip(hosts, reports, pods, strict=True)
        for problem in problems(host, report, spec, count, creates=creates)
    ]
    if found:
        raise TorchYardError("\n".join(["the job cannot run there:", *(f"  {each}" for each in found)]))
