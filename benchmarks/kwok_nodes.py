"""Nodes without machines: kwok plays their kubelets, in the cluster of KUBECONFIG, for as long as a benchmark runs."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from torchyard.kubernetes.client.api import Api

FAKE = {"kwok.x-k8s.io/node": "fake"}
NODES = 50


@contextlib.asynccontextmanager
async def simulated_nodes(api: Api, folder: Path) -> AsyncIterator[None]:
    """Nodes whose kubelet is kwok: pods placed there run at once and never end."""
    with kwok(folder):
        try:
            for number in range(NODES):
                await api.request("POST", "/api/v1/nodes", body=node(f"kwok-{number}"))
            await asyncio.wait_for(_ready(api), 120)
            yield
        finally:
            params = {"labelSelector": "type=kwok"}
            await api.request("DELETE", "/api/v1/nodes", params=params, body={})


async def _ready(api: Api) -> None:
    while True:
        found = json.loads(await api.request("GET", "/api/v1/nodes", params={"labelSelector": "type=kwok"}))["items"]
        conditions = [each for node in found for each in node["status"].get("conditions", ())]
        if sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions) == NODES:
            return
        await asyncio.sleep(0.5)


def node(name: str) -> dict[str, Any]:
    room = {"cpu": "1000", "memory": "10Ti", "pods": "1000", "nvidia.com/gpu": "64"}
    return {
        "metadata": {
            "name": name,
            "annotations": FAKE,
            "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        # Nothing else of the cluster may come here.
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": room, "allocatable": room},
    }


@contextlib.contextmanager
def kwok(folder: Path) -> Iterator[None]:
    program = shutil.which("kwok")
    if program is None:
        raise SystemExit('no kwok in PATH: make kind-up; eval "$(make -s kind-env)"')
    selector = "=".join(*FAKE.items())
    words = [program, "--kubeconfig", os.environ["KUBECONFIG"], "--config", str(Path(__file__).with_name("kwok.yaml"))]
    words += [f"--manage-nodes-with-annotation-selector={selector}", "--node-lease-duration-seconds=40"]
    with (folder / "kwok.log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)
