"""The nodes of the test cluster, to be frozen, lost and cut off: kind's node containers, driven through Docker.

Any cluster can carry the other tests; what breaks nodes needs `make kind-up`:

    why = testbed.skip()
    if why: pytest.skip(why)
    worker = testbed.workers()[0]
    with worker.repaired_afterwards():
        worker.disconnect()
"""

import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from kubernetes import client, config

CLUSTER = "torchyard"
GPUS = {"nvidia.com/gpu": "8"}
READY_WITHIN = 900.0
# Everything that the node sends and receives and that it forwards for its pods, by IPv4 and IPv6.
CUT = "inet torchyard_cut"
CUT_RULES = f"""table {CUT} {{
  chain in {{ type filter hook prerouting priority raw; iifname "eth0" drop; }}
  chain out {{ type filter hook postrouting priority 300; oifname "eth0" drop; }}
}}"""
APART = "inet torchyard_apart"
API_SERVER = "/etc/kubernetes/manifests/kube-apiserver.yaml"
PARKED = "/etc/kubernetes/kube-apiserver.yaml"


def skip() -> str | None:
    """Why nodes cannot be broken here, or None if KUBECONFIG is the cluster that `make kind-up` made."""
    if not shutil.which("docker"):
        return "nodes are broken through Docker, and there is no docker here"
    published = _docker("port", f"{CLUSTER}-control-plane", "6443/tcp", check=False)
    if not published:
        return (
            'nodes are broken through kind\'s containers, and there are none: make kind-up; eval "$(make -s kind-env)"'
        )
    address = published.split()[0]
    server = urlsplit(_core().api_client.configuration.host).netloc
    if server != address:
        return (
            f"KUBECONFIG={os.environ.get('KUBECONFIG', '')} is a cluster at {server}, not the kind cluster at {address}"
        )
    return None


def control_plane() -> "Node":
    """The node that runs the API server, etcd, the scheduler and the controllers."""
    return Node(f"{CLUSTER}-control-plane")


def workers() -> tuple["Node", "Node"]:
    """The nodes that run pods."""
    return Node(f"{CLUSTER}-worker"), Node(f"{CLUSTER}-worker2")


def nodes() -> tuple["Node", ...]:
    """Every node, the control plane first."""
    return control_plane(), *workers()


@dataclass(frozen=True)
class Node:
    """One node of the kind cluster, a container of the same name."""

    name: str

    def pause(self) -> None:
        """Freeze every process of the node: connections stay open and no process answers."""
        _docker("pause", self.name)

    def unpause(self) -> None:
        """Continue a frozen node as if no time had passed."""
        _docker("unpause", self.name)

    def kill(self) -> None:
        """Lose the node: all its processes die at once, its disk stays."""
        _docker("kill", self.name)

    def start(self) -> None:
        """Switch a lost node on again; returns before it is Ready."""
        _docker("start", self.name)

    def disconnect(self) -> None:
        """Cut the node off from everything: packets vanish, processes go on, its pods still see each other.

        `docker network disconnect` would take the node's address away for good.
        """
        self.connect()
        self.run("nft", CUT_RULES)

    def connect(self) -> None:
        """End what `disconnect` began; a node that is not cut off stays as it is."""
        self.succeeds("nft", "delete", "table", *CUT.split())

    def separate(self, one: str, other: str) -> None:
        """Drop what two pods send to each other over this node; everything else passes. `unite` ends it."""
        family = "ip6" if ":" in one else "ip"
        drops = " ".join(f"{family} saddr {a} {family} daddr {b} drop;" for a, b in ((one, other), (other, one)))
        chain = f"chain c {{\n type filter hook prerouting priority raw; {drops}\n}}"
        self.run("nft", f"table {APART}_{_digest(one, other)} {{\n{chain}\n}}")

    def unite(self, one: str, other: str) -> None:
        """End what `separate` began."""
        self.succeeds("nft", "delete", "table", *f"{APART}_{_digest(one, other)}".split())

    def stop_kubelet(self) -> None:
        """Stop the kubelet; the node's containers go on."""
        self.run("systemctl", "stop", "kubelet")

    def start_kubelet(self) -> None:
        """Start the kubelet again; returns before the node is Ready."""
        self.run("systemctl", "start", "kubelet")

    def stop_api_server(self) -> None:
        """Take the API server away (of the control plane): connections are refused until `start_api_server`."""
        self.run("mv", API_SERVER, PARKED)
        self.succeeds("pkill", "-KILL", "-x", "kube-apiserver")

    def start_api_server(self) -> None:
        """Bring the API server back; returns before it answers."""
        self.run("mv", PARKED, API_SERVER)

    def run(self, *argv: str) -> str:
        """Run a program on the node and return its stdout."""
        return _docker("exec", self.name, *argv)

    def succeeds(self, *argv: str) -> bool:
        """Whether a program on the node ends with 0."""
        return subprocess.run(["docker", "exec", self.name, *argv], check=False, capture_output=True).returncode == 0

    def ready(self) -> bool:
        """Whether the API server holds the node for Ready."""
        found = _core().read_node(self.name, _request_timeout=10)
        return any(one.type == "Ready" and one.status == "True" for one in found.status.conditions)

    def repair(self) -> None:
        """Undo whatever was done to the node; returns when its kubelet has reported it Ready with its GPUs again.

        Raises:
            TimeoutError: it is not Ready within 15 min.
        """
        state = json.loads(_docker("inspect", "--format", "{{json .State}}", self.name))
        if state["Paused"]:
            self.unpause()
        if not state["Running"]:
            self.start()
        began = time.monotonic()
        _until(lambda: self.succeeds("systemctl", "is-active", "containerd"), f"containerd of {self.name} runs", began)
        self.connect()
        if self.succeeds("test", "-e", PARKED):
            self.start_api_server()
        self.start_kubelet()
        # Ready is also what the API server still believes of a node that was lost a moment ago.
        asked = datetime.now(UTC)
        _until(lambda: self._renewed() > asked and self._offers_gpus(), f"node {self.name} is Ready", began)

    @contextmanager
    def repaired_afterwards(self) -> Iterator[None]:
        """Break the node inside; it is whole again outside, whatever happened."""
        try:
            yield
        finally:
            self.repair()

    def _renewed(self) -> datetime:
        leases = client.CoordinationV1Api(_core().api_client)
        return leases.read_namespaced_lease(self.name, "kube-node-lease", _request_timeout=10).spec.renew_time

    def _offers_gpus(self) -> bool:
        if not self.ready():
            return False
        if self == control_plane():
            return True
        # A kubelet may forget resources that no device plugin brings when it starts anew.
        core = _core()
        offered = core.read_node(self.name, _request_timeout=10).status.allocatable.get("nvidia.com/gpu")
        if offered != GPUS["nvidia.com/gpu"]:
            core.patch_node_status(self.name, {"status": {"capacity": GPUS, "allocatable": GPUS}}, _request_timeout=10)
        return offered == GPUS["nvidia.com/gpu"]


@contextmanager
def apart(one: str, other: str) -> Iterator[None]:
    """Keep packets of two pods from each other within the block, on whichever nodes they are.

    Args:
        one: address of a pod.
        other: address of another pod.
    """
    try:
        for node in workers():
            node.separate(one, other)
        yield
    finally:
        for node in workers():
            node.unite(one, other)


def _digest(*texts: str) -> str:
    return hashlib.sha256(" ".join(texts).encode()).hexdigest()[:12]


def _core() -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config())


def _until(condition, what: str, began: float) -> None:
    while True:
        try:
            if condition():
                return
            refused = None
        except Exception as error:  # noqa: BLE001 - while the API server is away every kind of refusal may come
            refused = error
        if time.monotonic() - began > READY_WITHIN:
            raise TimeoutError(f"not so within {READY_WITHIN:.0f} s: {what}") from refused
        time.sleep(0.2)


def _docker(*argv: str, check: bool = True) -> str:
    done = subprocess.run(["docker", *argv], check=False, capture_output=True, text=True)
    assert done.returncode == 0 or not check, f"docker {' '.join(argv)}: {done.stderr.strip()}"
    return done.stdout.strip() if done.returncode == 0 else ""
