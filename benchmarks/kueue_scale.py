"""Gangs of eight pods through Kueue on nodes that kwok plays, beside JobSets through a queue of the same size.

    make kind-up SCHEDULERS=kueue,jobset; eval "$(make -s kind-env)"
    python benchmarks/kueue_scale.py [--jobs 1875] [--pods 8] [--first torchyard|jobset] [--only ...]

The queue has quota for all of them. CPU is that of the whole system, as in benchmarks/scale.py. The latency of a gang
is from its admission until its last pod exists, both as a watch of this client sees them. Each peer has its own
namespace, and everything of the first is deleted before the second begins.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kwok_nodes import simulated_nodes
from scale import count_pods, in_parallel, namespace, pid, row, shares, started
from tests.support.cluster.gangs import KUEUE, queues
from tests.support.cluster.operators import Operator, make_certificates, until
from whole_system import processor, quiet

from torchyard.kubernetes.client.api import Api, connected
from torchyard.reconcile.ports import Unavailable

PEERS = ("torchyard", "jobset")
QUOTA = {"memory": "1000Ti", "cpu": "1000000"}
REQUESTS = {"cpu": "1", "memory": "1Gi"}
PLACE = {"nodeSelector": {"type": "kwok"}, "tolerations": [{"operator": "Exists"}]}
Create = Callable[[Api, str, int, int], Awaitable[None]]


class Watch:
    """When each gang was admitted and when its last pod was created, by name of the gang."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.admitted: dict[str, float] = {}
        self.pods: defaultdict[str, dict[str, float]] = defaultdict(dict)

    async def follow(self, api: Api, path: str, see: Callable[[dict[str, Any]], None]) -> None:
        """Pass every change of a collection to `see`, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError, Unavailable):  # the server is busy: all objects are sent again
                async for line in api.stream(path, {"watch": "true"}):
                    see(json.loads(line)["object"])

    def see_workload(self, workload: dict[str, Any]) -> None:
        conditions = {each["type"]: each["status"] for each in workload.get("status", {}).get("conditions", ())}
        if conditions.get("Admitted") == "True":
            self.admitted.setdefault(workload["metadata"]["ownerReferences"][0]["name"], time.monotonic())

    def see_pod(self, pod: dict[str, Any]) -> None:
        gang = pod["metadata"]["labels"].get(self.label, "")
        self.pods[gang].setdefault(pod["metadata"]["name"], time.monotonic())

    def latencies(self) -> list[float]:
        """Return the seconds from admission to the last pod, of each gang."""
        return [max(0.0, max(self.pods[gang].values()) - at) for gang, at in self.admitted.items() if self.pods[gang]]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1875, help="gangs")
    parser.add_argument("--pods", type=int, default=8, help="pods of each")
    parser.add_argument("--first", choices=PEERS, default="jobset", help="which of the two comes first")
    parser.add_argument("--only", choices=PEERS, help="measure this one alone")
    options = parser.parse_args()
    peers = {"jobset": measure_jobset, "torchyard": measure_torchyard}
    with tempfile.TemporaryDirectory() as folder:
        async with connected() as api, simulated_nodes(api, Path(folder)):
            print("| | value |\n|---|---|")
            for name in [options.only] if options.only else sorted(peers, key=lambda each: each != options.first):
                await peers[name](api, options, Path(folder))


async def measure_jobset(api: Api, options: argparse.Namespace, _: Path) -> None:
    """Measure JobSets, of one replicated Job each."""
    async with namespace(api) as name, queues(api, name, **QUOTA):
        await load(api, name, options, create_jobset, label="jobset.sigs.k8s.io/jobset-name")


async def measure_torchyard(api: Api, options: argparse.Namespace, folder: Path) -> None:
    """Measure TrainingJobs, with an operator beside the cluster."""
    async with namespace(api) as name, queues(api, name, **QUOTA):
        tls = make_certificates(folder / "tls", "127.0.0.1")
        operator = Operator(folder, name, tls=tls, address="127.0.0.1", flags=("--schedulers", "kueue"))
        try:
            await started(operator)
            await load(api, name, options, submit, label="torchyard.dev/job", operator=operator)
        finally:
            operator.stop()


async def load(
    api: Api, name: str, options: argparse.Namespace, create: Create, *, label: str, operator: Operator | None = None
) -> None:
    """Create all gangs and print what it took until all pods exist."""
    what, pods, watch = "JobSet" if operator is None else "TorchYard", options.jobs * options.pods, Watch(label)
    async with asyncio.TaskGroup() as group:
        following = [
            group.create_task(watch.follow(api, f"{KUEUE}/namespaces/{name}/workloads", watch.see_workload)),
            group.create_task(watch.follow(api, f"/api/v1/namespaces/{name}/pods", watch.see_pod)),
        ]
        began, before = time.monotonic(), processor(pid(operator))
        await in_parallel(lambda number: create(api, name, number, options.pods), options.jobs)

        async def all_there() -> bool:
            await asyncio.sleep(0.5)  # a list costs the API server 10 ms
            return await count_pods(api, name) >= pods

        await until(all_there, 3600)
        seconds, after = time.monotonic() - began, processor(pid(operator))
        await quiet(pid(operator))
        for each in following:
            each.cancel()
    latencies = sorted(watch.latencies())
    p95 = statistics.quantiles(latencies, n=20)[-1]
    row(f"{what}: {options.jobs} x {options.pods} pods exist after", f"{seconds:.1f} s, {pods / seconds:.0f} pods/s")
    row(f"{what}: admission to last pod, p50 / p95", f"{statistics.median(latencies):.2f} / {p95:.2f} s")
    row(f"{what}: whole system's CPU until then", shares(before, after))


async def create_jobset(api: Api, name: str, number: int, pods: int) -> None:
    """Create a JobSet that Kueue starts, with the defaults that JobSet's webhook sets."""
    container = {"name": "trainer", "image": "trainer", "resources": {"requests": REQUESTS}}
    job = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container], **PLACE}},
    }
    body = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": f"job-{number}", "labels": {"kueue.x-k8s.io/queue-name": "team"}},
        "spec": {
            "suspend": True,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [{"name": "gang", "replicas": 1, "template": {"spec": job}}],
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "successPolicy": {"operator": "All"},
        },
    }
    await api.request("POST", f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{name}/jobsets", body=body)


async def submit(api: Api, name: str, number: int, pods: int) -> None:
    """Create a TrainingJob of the same size."""
    body = {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": f"job-{number}"},
        "spec": {
            "command": ["torchrun", "train.py"],
            "nodes": pods,
            "resources": REQUESTS,
            "scheduling": {"queue": "team", **PLACE},
        },
    }
    await api.request("POST", f"/apis/torchyard.dev/v1alpha1/namespaces/{name}/trainingjobs", body=body)


if __name__ == "__main__":
    asyncio.run(main())
