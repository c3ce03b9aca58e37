"""Two gangs that compete for room for one, again and again: is one ever placed in part, and when does the other wake?

    make kind-up SCHEDULERS=kueue,volcano,coscheduling; eval "$(make -s kind-env)"
    python benchmarks/gang_races.py [--schedulers kueue,native] [--races 500] [--lanes 4] [--strict]

Pods run on played nodes (tests/cluster/plans/kubelet.py), with the real scheduler, API server and operator. The wake is
from the moment at which the last pod of the first gang has ended until the last pod of the other one has a node. Any
pod of the other one that has a node before that ends the benchmark with an error. Each lane has a namespace, an
operator and a node, and its races follow each other; one lane measures the wake best, several make more races.
"""

import argparse
import asyncio
import contextlib
import math
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.cluster.plans.kubelet import node
from tests.cluster.plans.lane import lane
from tests.support.cluster.gangs import Gangs, queues, served
from tests.support.cluster.namespaces import install
from tests.support.cluster.operators import make_certificates
from tests.support.cluster.patient_api import connected

from torchyard.kubernetes.client.api import Api


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--schedulers", default="kueue,native,volcano,coscheduling", help="names")
    parser.add_argument("--races", type=int, default=500, help="with each of them")
    parser.add_argument("--strict", action="store_true", help="queues of Kueue with the strategy StrictFIFO")
    parser.add_argument("--lanes", type=int, default=1, help="races at the same time")
    options = parser.parse_args()
    print(
        "| scheduler | races | wake p50 / p95 / max | objects left | seconds a race |\n|---|---|---|---|---|",
        flush=True,
    )
    async with connected() as api:
        await install(api)
        for scheduler in options.schedulers.split(","):
            with tempfile.TemporaryDirectory() as folder:
                await measure(api, scheduler, options, Path(folder))


async def measure(api: Api, scheduler: str, options: argparse.Namespace, folder: Path) -> None:
    """Print the row of one scheduler."""
    start, numbers = time.monotonic(), iter(range(options.races))
    folders = [folder / str(number) for number in range(options.lanes)]
    results = await asyncio.gather(*(races(api, scheduler, each, numbers, strict=options.strict) for each in folders))
    waits = [seconds for lane_waits in results for seconds in lane_waits]
    p95 = sorted(waits)[math.ceil(0.95 * len(waits)) - 1]
    wake = f"{statistics.median(waits):.2f} / {p95:.2f} / {max(waits):.2f} s"
    took = (time.monotonic() - start) / options.races
    print(f"| {scheduler} | {len(waits)} | {wake} | 0 | {took:.1f} |", flush=True)


async def races(api: Api, scheduler: str, folder: Path, numbers: Iterator[int], *, strict: bool) -> list[float]:
    """Run races in one lane until there are no more numbers; return the seconds until the other gang wakes of each."""
    waits = []
    strategy = "StrictFIFO" if strict else "BestEffortFIFO"
    name, flags = f"ty-races-{secrets.token_hex(3)}", ("--schedulers", scheduler)
    tls = make_certificates(folder / "tls", "127.0.0.1")
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(node(api, name))
        one = await stack.enter_async_context(lane(api, name, tls, folder, flags))
        gangs = Gangs(one, scheduler, await served(api, scheduler))
        if scheduler == "kueue":
            team = await stack.enter_async_context(queues(api, gangs.jobs.namespace, name, strategy=strategy))
        for number in numbers:
            waits.append(await gangs.race(number))
            print(f"\r{scheduler}: race {number + 1}", end="", file=sys.stderr, flush=True)
        await gangs.no_leak()
        if scheduler == "kueue":
            await team.is_free()
    return waits


if __name__ == "__main__":
    asyncio.run(main())
