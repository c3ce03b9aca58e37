"""Edit of one line to the first optimizer step of the new code.

    python benchmarks/edit_to_step.py [EDITS] [NODES]
    eval "$(make -s kind-env)"; make kind-images; python benchmarks/edit_to_step.py kind [EDITS] [NODES]

On this machine: `torchyard run --watch`, beside a run that is stopped with Ctrl-C and started again by hand. On kind:
`torchyard submit --replace`, which pushes the code into the pods that run, from the start of the command; beside the
way of tools that restart pods: the same command with a renamed variable, for which all pods are replaced. The operator
is a process of this machine, as in all tests; the nodes must share its clock, as kind's do.

Prints median, p95 and largest seconds of each way. Everything is real: the command line, agents, torch, gloo.
"""

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from tests.support.cluster.jobs import Jobs

DEADLINE_SECONDS = 300.0  # ends only what hangs
TORCHYARD = Path(sys.executable).with_name("torchyard")
PROGRAM = """
import os, pathlib, time, torch, torch.distributed as dist
from model import VALUE
dist.init_process_group("gloo")
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(layer.parameters())
loss = layer(torch.ones(1, 8)).sum()
loss.backward()
optimizer.step()
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    now = time.time()
    print("first step", VALUE, now, flush=True)
    marks = pathlib.Path(os.environ["MARKS"])
    (marks / "new").write_text(repr(now))
    (marks / "new").rename(marks / str(VALUE))
time.sleep(9000)
"""


class Bed:
    """A project, a home for its runs, and the folder in which a program leaves the time of its first step."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.project, self.marks = folder / "project", folder / "marks"
        for each in (self.project, self.marks):
            each.mkdir()
        (self.project / "train.py").write_text(PROGRAM)
        self.env = {**os.environ, "TORCHYARD_HOME": str(folder / "home"), "MARKS": str(self.marks)}
        self.env["OMP_NUM_THREADS"] = "1"
        self.words = ["run", "train.py", "--code", ".", "--nodes", str(nodes), "--quiet"]

    def edit(self, value: int) -> float:
        """Write another value into the module; return the time of the edit."""
        (self.project / "model.py").write_text(f"VALUE = {value}\n")
        return time.time()

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Start the command."""
        return subprocess.Popen(
            [TORCHYARD, *self.words, *more],
            cwd=self.project,
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def first_step(self, value: int) -> float:
        """Return the time of the first step of the code with this value."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not (self.marks / str(value)).exists():
            if time.monotonic() > end:
                sys.exit(f"no step of the code with value {value}")
            time.sleep(0.005)
        return float((self.marks / str(value)).read_text())


def watched(bed: Bed, edits: int) -> list[float]:
    """Return the seconds from each edit to the first step while `torchyard run --watch` runs."""
    bed.edit(0)
    running = bed.start("--watch")
    bed.first_step(0)
    seconds = []
    for value in range(1, edits + 1):
        edited = bed.edit(value)
        seconds.append(bed.first_step(value) - edited)
    ended(running)
    return seconds


def by_hand(bed: Bed, edits: int) -> list[float]:
    """Return the same where the command is stopped and started again for each edit."""
    running = None
    seconds = []
    for value in range(1000, 1000 + edits):
        edited = bed.edit(value)
        if running is not None:
            ended(running)
        running = bed.start()
        seconds.append(bed.first_step(value) - edited)
    if running is not None:
        ended(running)
    return seconds


def ended(running: subprocess.Popen[bytes]) -> None:
    """Stop the command and wait for its end."""
    running.send_signal(signal.SIGINT)
    running.wait(DEADLINE_SECONDS)


async def on_kind(edits: int, nodes: int) -> dict[str, list[float]]:
    """Return the seconds from the start of each command to the first step of its code, on the cluster, by way."""
    from tests.support.cluster.jobs import Jobs
    from tests.support.cluster.namespaces import fresh_namespace, install
    from tests.support.cluster.operators import Operator, address_for_pods, make_certificates
    from tests.support.cluster.patient_api import connected

    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        async with connected() as api, fresh_namespace(api) as namespace:
            await install(api)
            address = await address_for_pods(api)
            tls = make_certificates(folder / "tls", address)
            operator = Operator(folder, namespace, tls=tls, address=address, pod="operator-0")
            operator.start()
            try:
                await operator.ready()
                return await _on_cluster(Jobs(api, namespace), Bed(folder, nodes), edits)
            finally:
                operator.stop()


async def _on_cluster(jobs: "Jobs", bed: Bed, edits: int) -> dict[str, list[float]]:
    words = ["submit", "train.py", "--code", ".", "--replace", "--nodes", bed.words[5], "-n", jobs.namespace]
    # Both nodes' pods write to folders of their own, and only the first rank does.
    words += ["--env", "MARKS=/tmp", "--env", "OMP_NUM_THREADS=1"]

    async def step(value: int, *more: str) -> float:
        bed.edit(value)
        started = time.time()
        done = await asyncio.to_thread(
            subprocess.run, [TORCHYARD, *words, *more], cwd=bed.project, env=bed.env, capture_output=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr.decode())
        return await _printed(jobs, value) - started

    await step(0)
    ways: dict[str, list[float]] = {"submit --replace": [], "with new pods": []}
    for value in range(1, edits + 1):
        ways["submit --replace"].append(await step(value))
    for value in range(1001, 1001 + edits):
        ways["with new pods"].append(await step(value, "--env", f"EDIT_{value}=1"))
    return ways


async def _printed(jobs: "Jobs", value: int) -> float:
    """Return the time that the first rank printed with its first step of the code with this value."""
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        for name, pod in (await jobs.pods("train")).items():
            if pod["status"]["phase"] == "Running":
                log = await jobs.api.request("GET", f"{jobs.core}/pods/{name}/log", accept="*/*")
                for line in log.decode().splitlines():
                    _, found, rest = line.partition(f"first step {value} ")
                    if found:
                        return float(rest)
        await asyncio.sleep(0.2)
    sys.exit(f"no step of the code with value {value}")


def on_this_machine(edits: int, nodes: int) -> dict[str, list[float]]:
    """Return the seconds from each edit to the first step of its code, by way."""
    measured = {}
    ways: dict[str, Callable[[Bed, int], list[float]]] = {"run --watch": watched, "stop and run again": by_hand}
    for name, measure in ways.items():
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            measured[name] = measure(Bed(folder, nodes), edits)
    return measured


def main(words: list[str]) -> None:
    """Measure all ways, and print the table."""
    kind = words[:1] == ["kind"]
    edits, nodes = [*map(int, words[kind:]), *(20, 2)[len(words[kind:]) :]]
    print(f"{edits} edits, {nodes} nodes, load {os.getloadavg()[0]:.1f}", flush=True)
    measured = asyncio.run(on_kind(edits, nodes)) if kind else on_this_machine(edits, nodes)
    print(f"{'':20} median    p95    max")
    for name, seconds in measured.items():
        found = sorted(seconds)
        p95 = found[min(len(found) - 1, round(0.95 * (len(found) - 1)))]
        print(f"{name:20} {statistics.median(found):6.2f} {p95:6.2f} {found[-1]:6.2f}")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
