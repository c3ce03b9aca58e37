"""A thousand jobs of eight pods on a real API server with simulated kubelets, beside a client that only creates pods.

    eval "$(make -s kind-env)"; python benchmarks/scale.py [--jobs 1000] [--pods 8] [--samples 20]

Both take turns in one run on one cluster: the bare client first, then the operator as users run it (one process, one
lease). CPU is that of the whole system, from /proc: etcd, API server, controllers, scheduler, kwok, operator and this
client, so the cluster must run on this machine, as kind's does. Agents are no part of it: see benchmarks/intake.py.
"""

import argparse
import asyncio
import contextlib
import json
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from kwok_nodes import simulated_nodes
from tests.support.cluster.operators import Operator, make_certificates, until
from whole_system import memory, processor, quiet

from torchyard.api.crd import crd
from torchyard.api.resource import TrainingJob
from torchyard.kubernetes.client.api import APPLY_PATCH, Api, connected
from torchyard.kubernetes.manifests.names import Site
from torchyard.kubernetes.manifests.pod import pod
from torchyard.reconcile.actions import CreatePod
from torchyard.reconcile.ports import Unavailable

AT_ONCE = 64
COLD_STARTS = 3
IN_SERVICE_SECONDS = 15.0  # a leader of ten seconds does not know yet what it alone has seen (decision 16)
JOB: dict[str, Any] = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "spec": {
        "command": ["torchrun", "train.py"],
        "scheduling": {"nodeSelector": {"type": "kwok"}, "tolerations": [{"operator": "Exists"}]},
    },
}
SITE = Site(operator_url="https://127.0.0.1:1", ca_pem="x" * 700, agent_image="agent", trainer_image="trainer")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000, help="jobs of the load")
    parser.add_argument("--pods", type=int, default=8, help="pods of each")
    parser.add_argument("--samples", type=int, default=20, help="single jobs on the idle cluster")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        async with connected() as api, simulated_nodes(api, Path(folder)):
            print("| | value |\n|---|---|")
            async with namespace(api) as name:
                await load(api, name, given, create_bare)
            async with namespace(api) as name, namespace(api) as beside:
                await measure_operator(api, name, beside, Path(folder), given)


async def measure_operator(api: Api, name: str, beside: str, folder: Path, given: argparse.Namespace) -> None:
    """Latency of single jobs, the load, memory at its end, and a cold start there."""
    one = Operator(folder, name, tls=make_certificates(folder / "tls", "127.0.0.1"), address="127.0.0.1")
    try:
        await started(one)
        led = time.monotonic()
        row("operator: memory with no job", f"{memory(pid(one) or 0):.0f} MiB")
        await single_jobs(api, name, beside, given)
        await asyncio.sleep(led + IN_SERVICE_SECONDS - time.monotonic())
        before = await calls(one)
        await load(api, name, given, create_jobs, operator=one)
        row("operator: memory at the end of the load", f"{memory(pid(one) or 0):.0f} MiB")
        made = {key: count - before.get(key, 0.0) for key, count in (await calls(one)).items()}
        for key, count in sorted(made.items(), key=lambda each: -each[1]):
            if count >= given.jobs / 100:
                row(f"operator: {key} a job", f"{count / given.jobs:.2f}")
        row("operator: reconciles a job", f"{await one.figure('torchyard_reconciles_total') / given.jobs:.1f}")
        await one.terminate()

        async def begin(gang: str) -> None:
            one.start()
            await submit(api, name, gang, given.pods)

        times = []
        for number in range(COLD_STARTS):
            gang = f"cold-{number}"
            times.append(await gang_time(api, name, gang, given.pods, lambda gang=gang: begin(gang)))
            await until(one.leads, 60)
            await quiet(pid(one))
            await one.terminate()
        told = ", ".join(f"{each:.2f}" for each in times)
        row(f"operator: cold start to pod {given.pods} of a new job, at {given.jobs} x {given.pods}", f"{told} s")
    finally:
        one.stop()


async def single_jobs(api: Api, name: str, beside: str, given: argparse.Namespace) -> None:
    """One job at a time on an idle cluster, in turn with as many pods that the bare client creates at once."""
    bare: list[float] = []
    ours: list[float] = []
    for number in range(-1, given.samples):
        gang = f"single-{number + 1}"
        bare.append(
            await gang_time(api, beside, gang, given.pods, lambda gang=gang: create_gang(api, beside, gang, given.pods))
        )
        ours.append(await gang_time(api, name, gang, given.pods, lambda gang=gang: submit(api, name, gang, given.pods)))
    del bare[0], ours[0]  # connections are made, caches filled
    for who, times in (("bare client", bare), ("operator", ours)):
        figures = ms(statistics.median(times), max(times))
        row(f"{who}: asked to {given.pods} pods, idle cluster, p50 / max of {len(times)}", figures)
    row("operator / bare client: of these, p50", f"{statistics.median(ours) / statistics.median(bare):.2f}")


async def load(
    api: Api,
    name: str,
    given: argparse.Namespace,
    create: Callable[[Api, str, argparse.Namespace], Awaitable[None]],
    *,
    operator: Operator | None = None,
) -> None:
    """Create everything; print pods a second until all exist, and the CPU of all processes until they are idle."""
    what, wanted = "operator" if operator is not None else "bare client", given.jobs * given.pods
    present = await count_pods(api, name)
    began, before = time.monotonic(), processor(pid(operator))
    creating = asyncio.ensure_future(create(api, name, given))

    async def all_there() -> bool:
        await asyncio.sleep(0.5)  # a list costs the API server 10 ms
        return await count_pods(api, name) >= present + wanted

    await until(all_there, 3600)
    await creating
    seconds = time.monotonic() - began
    row(f"{what}: {given.jobs} x {given.pods} pods exist after", f"{seconds:.1f} s, {wanted / seconds:.0f} pods/s")
    row(f"{what}: CPU until then", shares(before, processor(pid(operator))))
    while await unplaced(api, name):  # noqa: ASYNC110 -- the cluster's news
        await asyncio.sleep(2)
    row(f"{what}: all of them run after", f"{time.monotonic() - began:.0f} s")
    await quiet(pid(operator))
    after = processor(pid(operator))
    row(f"{what}: whole system's CPU a pod", ms((sum(after.values()) - sum(before.values())) / wanted))
    row(f"{what}: whole system's CPU", shares(before, after))


async def create_bare(api: Api, name: str, given: argparse.Namespace) -> None:
    """The same pods, and nothing but them."""
    job = job_of_pods(name, "bare", given.pods)
    await in_parallel(lambda number: create_pod(api, job, number), given.jobs * given.pods)


async def create_gang(api: Api, name: str, gang: str, pods: int) -> None:
    job = job_of_pods(name, gang, pods)
    await in_parallel(lambda number: create_pod(api, job, number), pods)


def job_of_pods(namespace: str, name: str, pods: int) -> TrainingJob:
    document = {**JOB, "metadata": {"name": name, "namespace": namespace, "uid": "0"}}
    return msgspec.convert(document | {"spec": {**JOB["spec"], "nodes": pods}}, TrainingJob)


async def create_pod(api: Api, job: TrainingJob, number: int) -> None:
    action = CreatePod(name=f"{job.metadata.name}-{number}", index=number % job.spec.nodes, incarnation=0)
    manifest = pod(job, action, SITE)
    del manifest["metadata"]["ownerReferences"]
    await api.request("POST", f"/api/v1/namespaces/{job.metadata.namespace}/pods", body=manifest)


async def create_jobs(api: Api, name: str, given: argparse.Namespace) -> None:
    await in_parallel(lambda number: submit(api, name, f"job-{number}", given.pods), given.jobs)


async def submit(api: Api, name: str, job: str, pods: int) -> None:
    body = {**JOB, "metadata": {"name": job}, "spec": {**JOB["spec"], "nodes": pods}}
    await api.request("POST", f"/apis/torchyard.dev/v1alpha1/namespaces/{name}/trainingjobs", body=body)


async def gang_time(api: Api, name: str, gang: str, pods: int, ask: Callable[[], Awaitable[None]]) -> float:
    """Return the seconds from the request for a gang until a watch sends its last pod, once all of them run."""
    selector = {"watch": "true", "labelSelector": f"torchyard.dev/job={gang}"}
    told: dict[str, str] = {}
    seconds = 0.0

    async def watch() -> None:
        nonlocal seconds
        async for line in api.stream(f"/api/v1/namespaces/{name}/pods", selector):
            now = json.loads(line)["object"]
            told[now["metadata"]["uid"]] = now["status"]["phase"]
            if len(told) == pods and not seconds:
                seconds = time.monotonic() - begun
            if [*told.values()] == ["Running"] * pods:
                return

    begun = time.monotonic()
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(watch())
        await ask()
    return seconds


async def in_parallel(work: Callable[[int], Awaitable[None]], number: int) -> None:
    numbers = iter(range(number))

    async def worker() -> None:
        for each in numbers:
            await work(each)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())


async def count_pods(api: Api, name: str) -> int:
    """How many there are, without reading them."""
    page = json.loads(await api.request("GET", f"/api/v1/namespaces/{name}/pods", params={"limit": "1"}))
    return len(page["items"]) + page["metadata"].get("remainingItemCount", 0)


async def unplaced(api: Api, name: str) -> bool:
    params = {"limit": "1", "fieldSelector": "status.phase=Pending"}
    return bool(json.loads(await api.request("GET", f"/api/v1/namespaces/{name}/pods", params=params))["items"])


async def calls(operator: Operator) -> dict[str, float]:
    """Requests so far by verb and resource."""
    _, text = await operator.page("/metrics")
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("torchyard_api_requests_total{"):
            labels, _, value = line.partition("{")[2].rpartition("} ")
            fields = dict(part.split("=", 1) for part in labels.split(","))
            key = f"{fields['verb']} {fields.get('resource', '')}".replace('"', "")
            found[key] = found.get(key, 0.0) + float(value)
    return found


async def started(operator: Operator) -> None:
    operator.start()
    await operator.ready()
    await until(operator.leads, 60)


def pid(operator: Operator | None) -> int | None:
    return operator.process.pid if operator is not None and operator.process is not None else None


@contextlib.asynccontextmanager
async def namespace(api: Api) -> AsyncIterator[str]:
    """A namespace, and what is in it, for a while; the TrainingJob resource is there."""
    name = f"ty-scale-{secrets.token_hex(3)}"
    document = {"apiVersion": "apiextensions.k8s.io/v1", **crd()}
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{document['metadata']['name']}"
    params = {"fieldManager": "torchyard-tests", "force": "true"}
    await api.request("PATCH", path, params=params, body=document, content_type=APPLY_PATCH)
    await api.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    try:
        yield name
    finally:
        await until(lambda: _is_empty(api, name), 900)
        await api.request("DELETE", f"/api/v1/namespaces/{name}")


async def _is_empty(api: Api, name: str) -> bool:
    """Whether no job and no pod is left; the API server ends what takes longer than a minute, so it is asked again."""
    with contextlib.suppress(Unavailable):
        path = f"/apis/torchyard.dev/v1alpha1/namespaces/{name}/trainingjobs"
        await api.request("DELETE", path, body={}, timeout=90)
        await api.request("DELETE", f"/api/v1/namespaces/{name}/pods", body={"gracePeriodSeconds": 0}, timeout=90)
        return await count_pods(api, name) == 0
    return False


def shares(before: dict[str, float], after: dict[str, float]) -> str:
    spent = {who: used - before.get(who, 0.0) for who, used in after.items()}
    return f"{sum(spent.values()):.1f} s: " + ", ".join(f"{who} {used:.1f}" for who, used in spent.items())


def row(name: str, value: str) -> None:
    print(f"| {name} | {value} |", flush=True)


def ms(*seconds: float) -> str:
    return " / ".join(f"{1000 * each:.0f}" for each in seconds) + " ms"


if __name__ == "__main__":
    asyncio.run(main())
