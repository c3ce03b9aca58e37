"""Preemptions of a real training job on kind's two workers: which part of its steps each of them costs.

    make kind-up SCHEDULERS=kueue,volcano; make kind-images; eval "$(make -s kind-env)"
    python benchmarks/preemptions.py [--scheduler kueue] [--times 20]

The job makes a step about every 0.1 s and a checkpoint every 10 steps. A preemption asks its agents to save, so that no
step is made twice; where the scheduler deletes the pods itself, the trainer saves within its grace period.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.cluster.namespaces import fresh_namespace, install
from tests.support.cluster.operators import Operator, address_for_pods, make_certificates, until
from tests.support.cluster.patient_api import connected
from tests.support.cluster.preemption import Loss, contest


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scheduler", choices=["kueue", "volcano", "native"], default="kueue")
    parser.add_argument("--times", type=int, default=20, help="preemptions")
    given = parser.parse_args()
    losses: list[Loss] = []
    with tempfile.TemporaryDirectory() as folder:
        async with connected() as api, fresh_namespace(api) as namespace:
            await install(api)
            address, flags = await address_for_pods(api), ("--schedulers", given.scheduler)
            tls = make_certificates(Path(folder) / "tls", address)
            operator = Operator(Path(folder), namespace, tls=tls, address=address, flags=flags)
            try:
                operator.start()
                await operator.ready()
                await until(operator.leads)
                async with contest(api, namespace, given.scheduler) as one:
                    for number in range(given.times):
                        begun = time.monotonic()
                        losses.append(await one.preempt())
                        loss = losses[-1]
                        took = time.monotonic() - begun
                        row(f"preemption {number + 1}", f"{loss.made} steps, {loss.repeated} again, {took:.0f} s")
            finally:
                operator.stop()
    made, repeated = sum(each.made for each in losses), sum(each.repeated for each in losses)
    row("preemptions that repeated no step", f"{sum(not each.repeated for each in losses)} of {len(losses)}")
    row("steps that were kept", f"{100 * (1 - repeated / made):.1f} % of {made}")
    row("charged to the restart budget", str(sum(each.charged for each in losses)))


def row(name: str, value: str) -> None:
    print(f"| {name} | {value} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
