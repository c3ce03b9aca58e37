"""Faults on a real cluster: from the blow to the first step of the next round, for what happens to workers and pods.

    eval "$(make -s kind-env)"; make kind-images
    python benchmarks/recovery_cluster.py [--repeats 3] [--only WORDS] [--raw FILE] [--trace] [--nodes | --spare]
        [--agent-volume]

A built-in workload trains on two pods and saves every ten steps; the operator is a process of this machine that comes
back under its own name, as the container of a Deployment does. Seconds are counted from the moment the worker was
killed, or the API server was asked for the pod, until the status says that the next round makes steps; agents look and
report once a second. `--only`: faults whose name has these words, such as `memory`. `--trace` prints what happened
when, once for each fault. `--nodes` also kills nodes, which takes the pods of others along. `--spare`: the job has a
spare, whose agent has imported torch, and a pod is deleted by force. `--agent-volume`: pods mount the agent instead of
copying it. Raw data is one JSON line for each fault, appended at once: an interrupted series continues with the same
file. Nodes must share this machine's clock, as kind's do.
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
IMPORTED = "has imported torch"  # by a warm agent
GOALS = {"worker": 1.0, "pod": 4.0, "node": 15.0}  # of the 95th percentile, by a word of the name

Fault = Callable[[str], Awaitable[float | None]]


async def main(options: argparse.Namespace) -> None:
    """Measure, and print a row for each fault."""
    with tempfile.TemporaryDirectory() as folder:
        async with connected() as api, fresh_namespace(api) as namespace:
            await install(api)
            address = await address_for_pods(api)
            tls = make_certificates(Path(folder) / "tls", address)
            flags = ("--agent-volume", "true") if options.agent_volume else ()
            operator = Operator(Path(folder), namespace, tls=tls, address=address, pod="operator-0", flags=flags)
            operator.start()
            try:
                await operator.ready()
                await measure(Jobs(api, namespace), operator, options)
            finally:
                operator.stop()
    show([json.loads(line) for line in options.raw.read_text().splitlines()])


def faults(jobs: Jobs, operator: Operator, options: argparse.Namespace) -> dict[str, Fault]:
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

    if options.spare:
        return {"pod deleted by force, a spare is ready": lambda pod: jobs.delete_pod(pod, grace_seconds=0)}
    known: dict[str, Fault] = {
        "kill -9 of a worker": lambda pod: kill_worker(jobs, pod, 1),
        "a worker killed for lack of memory": lambda pod: exhaust_memory(jobs, pod),
        "pod deleted": jobs.delete_pod,
        "pod deleted by force": lambda pod: jobs.delete_pod(pod, grace_seconds=0),
        "pod evicted": lambda pod: evict(jobs, pod),
        "kill -9 of the operator and a worker": with_operator,
    }
    return known | ({"node lost": lose_node} if options.nodes else {})


async def measure(jobs: Jobs, operator: Operator, options: argparse.Namespace) -> None:
    """Inject each fault until the raw data has it as often as is asked for."""
    known = faults(jobs, operator, options)
    done = [json.loads(line)["fault"] for line in options.raw.read_text().splitlines()]
    training = await Training(jobs, STEPS, **({"spares": 1} if options.spare else {})).start()
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
    pod, node = await (member_beside_spare(training) if options.spare else training.pod(1))
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


async def member_beside_spare(training: Training) -> tuple[str, str]:
    """Return name and node of the pod of rank 1, once a spare has imported torch."""
    jobs, members, pods = training.jobs, [], {}

    async def is_warm() -> bool:
        nonlocal members, pods
        members = (await jobs.status(training.name))["rendezvous"]["members"]
        pods = {pod["metadata"]["uid"]: pod for pod in (await jobs.pods(training.name)).values()}
        spares = [pod for uid, pod in pods.items() if uid not in members and pod["status"]["phase"] == "Running"]
        return members[1] in pods and any([await has_imported(pod["metadata"]["name"]) for pod in spares])

    async def has_imported(pod: str) -> bool:
        params = {"container": "trainer"}
        text = await jobs.api.request("GET", f"{jobs.core}/pods/{pod}/log", params=params, accept="*/*")
        return IMPORTED in text.decode(errors="replace")

    await until(is_warm)
    pod = pods[members[1]]
    return pod["metadata"]["name"], pod["spec"]["nodeName"]


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
    parser.add_argument("--agent-volume", action="store_true", help="have pods mount the image of the agent")
    also = parser.add_mutually_exclusive_group()
    also.add_argument("--nodes", action="store_true", help="kill nodes, too: nothing else may use the test bed")
    also.add_argument("--spare", action="store_true", help="only the loss of a pod of a job that has a spare")
    options = parser.parse_args(words)
    if options.raw is None:
        options.raw = Path(tempfile.mkdtemp(prefix="recovery-")) / "raw.jsonl"
    options.raw.touch()
    return options


if __name__ == "__main__":
    asyncio.run(main(parse(sys.argv[1:])))
