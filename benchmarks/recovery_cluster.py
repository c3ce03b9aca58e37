"""Faults on a real cluster: from the blow to the first step of the next round, for what happens to workers and pods.

    eval "$(make -s kind-env)"; make kind-images
    python benchmarks/recovery_cluster.py [--repeats 3] [--only WORDS] [--raw FILE] [--trace] [--nodes]

A built-in workload trains on two pods and saves every ten steps; the operator is a process of this machine that comes
back under its own name, as the container of a Deployment does. Seconds are counted from the moment the worker was
killed, or the API server was asked for the pod, until the status says that the next round makes steps; agents look and
report once a second. `--only`: faults whose name has these words, such as `memory`. `--trace` prints what happened
when, once for each fault. `--nodes` also kills nodes, which takes the pods of others along. Raw data is one JSON line
for each fault, appended at once: an interrupted series continues with the same file. Nodes must share this machine's
clock, as kind's do.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

import recovery_phases
from tests.support.cluster import testbed
from tests.support.cluster.faults import evict, exhaust_memory, kill_worker
from tests.support.cluster.jobs import Jobs
from tests.support.cluster.namespaces import fresh_namespace, install
from tests.support.cluster.operators import Operator, address_for_pods, make_certificates, until
from tests.support.cluster.patient_api import connected
from tests.support.cluster.training import Training

STEPS = 1_000_000
GOALS = {"worker": 1.0, "pod": 4.0, "node": 15.0}  # of the 95th percentile, by a word of the name

Fault = Callable[[str], Awaitable[float | None]]


async def main(options: argparse.Namespace) -> None:
    """Measure, and print a row for each fault."""
    with tempfile.TemporaryDirectory() as folder:
        async with connected() as api, fresh_namespace(api) as namespace:
            await install(api)
            address = await address_for_pods(api)
            tls = make_certificates(Path(folder) / "tls", address)
            operator = Operator(Path(folder), namespace, tls=tls, address=address, pod="operator-0")
            operator.start()
            try:
                await operator.ready()
                await measure(Jobs(api, namespace), operator, options)
            finally:
                operator.stop()
    show([json.loads(line) for line in options.raw.read_text().splitlines()])


def faults(jobs: Jobs, operator: Operator, *, nodes: bool) -> dict[str, Fault]:
    """Return what can happen to the pod of rank 1, by name; each returns when it did, if that is known exactly."""

    async def with_operator(pod: str) -> float:
        await operator.kill()
        struck = await kill_worker(jobs, pod, 1)
        operator.start()
        return struck

    async def lose_node(pod: str) -> float:
        node = testbed.Node((await jobs.pods("job"))[pod]["spec"]["nodeName"])
        struck = time.time()
        await asyncio.to_thread(node.kill)
        return struck

    known: dict[str, Fault] = {
        "kill -9 of a worker": lambda pod: kill_worker(jobs, pod, 1),
        "a worker killed for lack of memory": lambda pod: exhaust_memory(jobs, pod),
        "pod deleted": jobs.delete_pod,
        "pod deleted by force": lambda pod: jobs.delete_pod(pod, grace_seconds=0),
        "pod evicted": lambda pod: evict(jobs, pod),
        "kill -9 of the operator and a worker": with_operator,
    }
    return known | ({"node lost": lose_node} if nodes else {})


async def measure(jobs: Jobs, operator: Operator, options: argparse.Namespace) -> None:
    """Inject each fault until the raw data has it as often as is asked for."""
    known = faults(jobs, operator, nodes=options.nodes)
    done = [json.loads(line)["fault"] for line in options.raw.read_text().splitlines()]
    training = await Training(jobs, STEPS).start()
    for turn in range(options.repeats):
        for name in known:
            if options.only in name and done.count(name) <= turn:
                await inject(name, known[name], training, operator, options, trace=options.trace and not turn)


async def inject(
    name: str, fault: Fault, training: Training, operator: Operator, options: argparse.Namespace, *, trace: bool
) -> None:
    """Inject a fault once, and write how long the job took to make steps again."""
    jobs = training.jobs
    number = (await training.gained())["round"]
    pod, node = await training.pod(1)
    load = os.getloadavg()[0]
    async with recovery_phases.Timeline(jobs, training.name).following() as timeline:
        asked = time.time()
        struck = await fault(pod) or asked
        await jobs.until(training.name, lambda now: now["round"] > number and now["state"] == "Running")
        seconds = time.time() - struck
        if trace:
            await timeline.read_output()
            timeline.decided(operator.log)
            Console(width=140).print(recovery_phases.table(name, struck, timeline.moments))
    line = json.dumps({"fault": name, "seconds": round(seconds, 3), "load": load, "time": struck})
    Console(stderr=True).print(line, highlight=False, soft_wrap=True)
    with options.raw.open("a") as file:
        file.write(line + "\n")
    await until(operator.leads)
    if name == "node lost":
        await asyncio.to_thread(testbed.Node(node).repair)


def show(measured: Sequence[dict]) -> None:
    """Print a row for each fault; a 95th percentile above its goal is marked."""
    table = Table(title="two pods, seconds to the next step", title_justify="left")
    for column in ("", "times", "median", "p95", "least", "most", "goal"):
        table.add_column(column, justify="left" if not column else "right")
    for name in dict.fromkeys(each["fault"] for each in measured):
        seconds = sorted(each["seconds"] for each in measured if each["fault"] == name)
        high = seconds[max(0, -(-95 * len(seconds) // 100) - 1)]
        goal = None if "operator" in name else next((most for word, most in GOALS.items() if word in name), None)
        figures = (statistics.median(seconds), high, seconds[0], seconds[-1])
        marked = f"{goal:.0f}{'' if high <= goal else ' missed'}" if goal is not None else ""
        table.add_row(name, str(len(seconds)), *(f"{each:.2f}" for each in figures), marked)
    Console().print(table)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--repeats", type=int, default=3, help="how often each fault is injected (default: %(default)s)"
    )
    parser.add_argument("--only", default="", help="faults whose name has these words")
    parser.add_argument("--raw", type=Path, help="file of raw data; it may have a part of the series already")
    parser.add_argument("--trace", action="store_true", help="print what happened when, once for each fault")
    parser.add_argument("--nodes", action="store_true", help="kill nodes, too: nothing else may use the test bed")
    options = parser.parse_args(words)
    if options.raw is None:
        options.raw = Path(tempfile.mkdtemp(prefix="recovery-")) / "raw.jsonl"
    options.raw.touch()
    return options


if __name__ == "__main__":
    asyncio.run(main(parse(sys.argv[1:])))
