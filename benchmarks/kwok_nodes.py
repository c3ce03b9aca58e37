"""Nodes without machines: kwok plays their kubelets, in the cluster of KUBECONFIG, for as long as a benchmark runs."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from torchyard.cluster.kube.client import Api

FAKE = {"kwok.x-k8s.io/node": "fake"}
NODES = 50


@contextlib.asynccontextmanager
async def simulated_nodes(api: Api, folder: Path) -> AsyncIterator[None]:
    """Nodes whose kubelet is kwok: pods placed there run at once and never end."""
    with kwok(folder):
        for number in range(NODES):
            await api.request("POST", "/api/v1/nodes", body=node(f"kwok-{number}"))
        try:
            yield
        finally:
            params = {"labelSelector": "type=kwok"}
            await api.request("DELETE", "/api/v1/nodes", params=params, body={})


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
    words = (program, "--kubeconfig", os.environ["KUBECONFIG"], f"--manage-nodes-with-annotation-selector={selector}")
    with (folder / "kwok.log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)
