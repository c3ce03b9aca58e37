"""Faults on a real cluster: from the blow to the first step of the next round, for what happens to workers and pods.

    eval "$(make -s kind-env)"; make kind-images; python benchmarks/recovery_cluster.py [REPEATS [WORDS]]

A built-in workload trains on two pods and saves every ten steps; the operator is a process of this machine that comes
back under its own name, as the container of a Deployment does. Seconds are counted from the moment the worker was
killed, or the API server was asked for the pod, until the status says that the next round makes steps; agents look and
report once a second. WORDS: only faults whose name has them, such as `memory`. Nodes must share this machine's clock,
as kind's do.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.cluster.faults import evict, exhaust_memory, kill_worker
from tests.support.cluster.jobs import Jobs
from tests.support.cluster.namespaces import fresh_namespace, install
from tests.support.cluster.operators import Operator, address_for_pods, make_certificates, until
from tests.support.cluster.patient_api import connected
from tests.support.cluster.training import Training

STEPS = 1_000_000


async def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    words = sys.argv[2] if len(sys.argv) > 2 else ""
    with tempfile.TemporaryDirectory() as folder:
        async with connected() as api, fresh_namespace(api) as namespace:
            await install(api)
            address = await address_for_pods(api)
            tls = make_certificates(Path(folder) / "tls", address)
            operator = Operator(Path(folder), namespace, tls=tls, address=address, pod="operator-0")
            operator.start()
            try:
                await operator.ready()
                measured = await measure(Jobs(api, namespace), operator, repeats, words)
            finally:
                operator.stop()
    table = Table(title=f"two pods, {repeats} times each, seconds to the next step", title_justify="left")
    for column in ("", "median", "least", "most"):
        table.add_column(column, justify="left" if not column else "right")
    for name, seconds in measured.items():
        figures = (statistics.median(seconds), min(seconds), max(seconds))
        table.add_row(name, *(f"{each:.1f}" for each in figures))
    Console().print(table)


async def measure(jobs: Jobs, operator: Operator, repeats: int, words: str) -> dict[str, list[float]]:
    """Seconds by fault, of those whose names have these words."""

    async def with_operator(pod: str) -> float:
        await operator.kill()
        struck = await kill_worker(jobs, pod, 1)
        operator.start()
        return struck

    faults: dict[str, Callable[[str], Awaitable[float | None]]] = {
        "kill -9 of a worker": lambda pod: kill_worker(jobs, pod, 1),
        "a worker killed for lack of memory": lambda pod: exhaust_memory(jobs, pod),
        "pod deleted": jobs.delete_pod,
        "pod deleted by force": lambda pod: jobs.delete_pod(pod, grace_seconds=0),
        "pod evicted": lambda pod: evict(jobs, pod),
        "kill -9 of the operator and a worker": with_operator,
    }
    faults = {name: fault for name, fault in faults.items() if words in name}
    training = await Training(jobs, STEPS).start()
    measured: dict[str, list[float]] = {name: [] for name in faults}
    for name, fault in [*faults.items()] * repeats:
        number = (await training.gained())["round"]
        pod, _ = await training.pod(1)
        asked = time.time()
        struck = await fault(pod) or asked
        await jobs.until(training.name, lambda now, after=number: now["round"] > after and now["state"] == "Running")
        measured[name].append(time.time() - struck)
        await until(operator.leads)
    return measured


if __name__ == "__main__":
    asyncio.run(main())
