"""Two replicas of the operator on a real cluster: how long no operator leads after a kill and after a clean stop.

eval "$(make -s kind-env)"; python benchmarks/failover.py [REPEATS]
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.cluster.namespaces import fresh_namespace, install
from tests.support.cluster.operators import Operator, make_certificates, until
from tests.support.cluster.patient_api import connected


async def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    measured: dict[str, list[float]] = {"kill -9": [], "SIGTERM": []}
    with tempfile.TemporaryDirectory() as folder:
        tls = make_certificates(Path(folder) / "tls", "127.0.0.1")
        async with connected() as api, fresh_namespace(api) as namespace:
            await install(api)
            leader, standby = (
                Operator(Path(folder), namespace, tls=tls, address="127.0.0.1", name=name) for name in ("one", "two")
            )
            try:
                await start(leader)
                await until(leader.leads, 30)
                for how in [*measured] * repeats:
                    await start(standby)
                    begun = time.monotonic()
                    await (leader.kill() if how == "kill -9" else leader.terminate())
                    await until(standby.leads, 30)
                    measured[how].append(time.monotonic() - begun)
                    leader, standby = standby, leader
            finally:
                leader.stop()
                standby.stop()
    for how, seconds in measured.items():
        print(f"{how}: {statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})")


async def start(operator: Operator) -> None:
    operator.start()
    await operator.ready()


if __name__ == "__main__":
    asyncio.run(main())
