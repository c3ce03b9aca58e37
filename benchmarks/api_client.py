"""What a list of pods costs as the operator reads it, and as the official client's models hold it.

    python benchmarks/api_client.py [--pods 2000]

The list is what an API server answers for pods that the operator built itself. Each way has a process of its own, since
memory that one way returned would serve the next. Processor time and memory are per pod (decision 33).
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def document(pods: int) -> bytes:
    """Return a PodList in JSON."""
    import msgspec

    from torchyard.api.resource import TrainingJob
    from torchyard.kubernetes.manifests.names import Site
    from torchyard.kubernetes.manifests.pod import pod as pod_manifest
    from torchyard.reconcile.actions import CreatePod

    job = msgspec.convert(
        {
            "apiVersion": "torchyard.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "cvrp", "namespace": "team", "uid": "11111111-2222-4333-8444-555555555555"},
            "spec": {"trainer": {"name": "cvrp"}, "nodes": 8, "gpusPerNode": 8},
        },
        TrainingJob,
    )
    site = Site(
        operator_url="https://torchyard:8443", ca_pem="x" * 800, agent_image="agent:1", trainer_image="trainer:1"
    )
    action = CreatePod(name="cvrp-0-1", index=1, incarnation=0)
    manifest = msgspec.to_builtins(pod_manifest(job, action, site, "x" * 148))
    # What the server adds.
    started = {"startedAt": "2026-11-21T10:00:00Z"}
    container = {"name": "trainer", "image": "trainer:1", "imageID": "sha256:1", "ready": True, "restartCount": 0}
    kept = manifest["spec"]["containers"][0]
    manifest["metadata"] |= {
        "creationTimestamp": "2026-11-21T10:00:00Z",
        "managedFields": [
            {"manager": "torchyard", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": kept}}
        ],
    }
    manifest["status"] = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "startTime": "2026-11-21T10:00:00Z",
        "conditions": [{"type": each, "status": "True"} for each in ("PodScheduled", "Initialized", "Ready")],
        "containerStatuses": [container | {"state": {"running": started}}],
    }
    items = []
    for number in range(pods):
        named = {"uid": f"{number:08x}-0000-4000-8000-000000000000", "resourceVersion": str(1000 + number)}
        items.append(manifest | {"metadata": manifest["metadata"] | named})
    page = {"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "9000"}, "items": items}
    return json.dumps(page).encode()


def by_the_operator() -> Callable[[bytes], Any]:
    """Decode the fields that are read, and keep what the informer keeps."""
    import msgspec

    from torchyard.kubernetes.cache.informer import Listed
    from torchyard.kubernetes.cache.pod_record import read
    from torchyard.kubernetes.objects import KubePod

    decoder = msgspec.json.Decoder(Listed[KubePod])
    return lambda page: [read(pod) for pod in decoder.decode(page).items]


def by_the_client() -> Callable[[bytes], Any]:
    """Decode as `CoreV1Api.list_pod_for_all_namespaces` does with the body of its response."""
    from kubernetes.client import ApiClient

    client = ApiClient()
    return lambda page: client.deserialize(page.decode(), "V1PodList", "application/json")


def as_dictionaries() -> Callable[[bytes], Any]:
    """Decode with the standard library."""
    return json.loads


WAYS = {"operator": by_the_operator, "kubernetes client": by_the_client, "json": as_dictionaries}


def measure(way: str, file: Path) -> dict[str, float]:
    """Return imports in MiB, and processor time and memory per pod of one way, in this process."""
    before = resident()
    decode = WAYS[way]()
    imported, page = resident() - before, file.read_bytes()
    pods = page.count(b'"creationTimestamp"')
    gc.collect()
    empty, started = resident(), time.process_time()
    kept = decode(page)
    used = time.process_time() - started
    gc.collect()
    memory = resident() - empty
    started = time.process_time()
    gc.collect()
    pause = time.process_time() - started
    del kept
    per_pod = {"microseconds": used / pods * 1e6, "kibibytes": memory / pods * 1024}
    return {"imports": imported} | per_pod | {"collection": pause * 1e3}


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    text = Path("/proc/self/status").read_text()
    return float(text.partition("VmRSS:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        way, file = arguments.measure
        print(json.dumps(measure(way, Path(file))))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pods.json"
        file.write_bytes(document(arguments.pods))
        print(f"{arguments.pods} pods of {file.stat().st_size / arguments.pods / 1024:.1f} KiB of JSON each\n")
        print(
            "| | imports, MiB | CPU per pod, us | memory per pod, KiB | a full collection, ms |\n|---|---|---|---|---|"
        )
        for way in WAYS:
            command = (sys.executable, __file__, "--measure", way, str(file))
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            cells = (f"{found[name]:.1f}" for name in ("imports", "microseconds", "kibibytes", "collection"))
            print(f"| {way} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
