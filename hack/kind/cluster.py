"""The kind cluster: a control plane, two workers with GPUs that only the scheduler believes in, a shared volume."""

import json
import os
import shutil
import string
import subprocess

import docker
import network_policies
from binaries import TOOLS, Family, programs
from cache import HERE, KIND, digest
from node_image import node_image, stock
from share import set_share
from shell import run, say, step, succeeds

NAME = "torchyard"
WORKERS = (f"{NAME}-worker", f"{NAME}-worker2")
NODES = (f"{NAME}-control-plane", *WORKERS)
KUBECONFIG = KIND / "kubeconfig"
SHARED = KIND / "shared"
BIN = KIND / "bin"
# Which image and configuration the cluster of KUBECONFIG was made from.
MADE_FROM = KIND / "made-from"
GPUS = "8"
# What only tests use: the library by which tools wait for resources (tests/test_gitops.py), a registry (hack/registry).
OF_TESTS = {"kstatus": Family("kstatus", (".",), "30 s"), "registry": Family("registry", (".",), "1 min")}


def up() -> None:
    """Have a cluster that fits and whose nodes are Ready; one that does not fit is replaced."""
    tools()
    image = node_image()
    config = _config()
    fingerprint = digest(image, config, HERE / "manifests")
    if _fits(fingerprint):
        say("the cluster is there and fits")
    else:
        delete()
        with step("creating a cluster of three nodes", usual="under a minute"):
            _create(image, config)
        MADE_FROM.write_text(fingerprint)
    if image != stock():
        network_policies.enforce(NODES, (BIN / "kubectl", "--kubeconfig", KUBECONFIG))
    offer_gpus()
    if docker.running():
        set_share(NODES[0])
    say(f'ready. For a shell with this cluster: eval "$(make -s kind-env)" (KUBECONFIG={KUBECONFIG})')


def tools() -> None:
    """Put kind, kubectl, helm and kwok into one folder of links for people's PATH."""
    BIN.mkdir(parents=True, exist_ok=True)
    for name, family in (TOOLS | OF_TESTS).items():
        program = programs(family) / name
        link = BIN / name
        if not link.is_symlink() or link.readlink() != program:
            link.unlink(missing_ok=True)
            link.symlink_to(program)


def kubectl(*argv: str, text: str | None = None) -> str:
    """Run kubectl against our cluster."""
    return run(BIN / "kubectl", "--kubeconfig", KUBECONFIG, *argv, text=text)


def offer_gpus() -> None:
    """Advertise GPUs on the workers. A kubelet that restarts forgets them, as it would without a device plugin."""
    quantity = {"nvidia.com/gpu": GPUS}
    patch = json.dumps({"status": {"capacity": quantity, "allocatable": quantity}})
    for node in WORKERS:
        kubectl("patch", "node", node, "--subresource=status", "--type=merge", "--patch", patch)


def delete() -> None:
    """Remove the cluster, its network and what its pods left on the shared volume."""
    MADE_FROM.unlink(missing_ok=True)
    label = f"label=io.x-k8s.kind.cluster={NAME}"
    if containers := run("docker", "ps", "--all", "--quiet", "--filter", label).split():
        if docker.running():
            set_share(containers[0], processes=1)
        with step("deleting the cluster"):
            run("docker", "rm", "--force", "--volumes", *containers)
    shutil.rmtree(SHARED, ignore_errors=True)
    KUBECONFIG.unlink(missing_ok=True)


def _config() -> str:
    cri = '[plugins."io.containerd.grpc.v1.cri"'
    # Every second containerd asks how much processor time each container took, for a figure that nothing here reads. On
    # idle nodes that is a fifth of all they do.
    patches = ['[plugins."io.containerd.cri.v1.runtime"]\nstats_collect_period = "1h"']
    if not docker.has_sys_resource():
        # containerd lowers OOM scores of pods, which needs the capability that some machines withhold from root.
        patches.append(f"{cri}]\nrestrict_oom_score_adj = true")
    by_systemd = docker.cgroup_version() != "1"
    if not by_systemd:
        # Where systemd manages control groups of version 1, runc freezes each while it sets its limits. On a busy
        # machine that fails, and with it the start of the container.
        patches.append(f"{cri}.containerd.runtimes.runc.options]\nSystemdCgroup = false")
    template = string.Template((HERE / "cluster.yaml").read_text())
    driver = "systemd" if by_systemd else "cgroupfs"
    return template.substitute(shared=SHARED, containerd_patches=json.dumps(patches), cgroup_driver=driver)


def is_built() -> bool:
    """Whether a cluster was made here before: what it takes is in the cache."""
    return (KIND / "cluster.yaml").exists()


def is_up() -> bool:
    """Whether all its nodes run, Ready or not."""
    return set(NODES) <= set(run("docker", "ps", "--filter", "status=running", "--format", "{{.Names}}").split())


def _fits(fingerprint: str) -> bool:
    if not (MADE_FROM.exists() and MADE_FROM.read_text() == fingerprint):
        return False
    if not is_up():
        return False
    ready = ("wait", "--for=condition=Ready", "nodes", *NODES, "--timeout=20s", "--request-timeout=20s")
    return succeeds(BIN / "kubectl", "--kubeconfig", KUBECONFIG, *ready, timeout=40)


def _create(image: str, config: str) -> None:
    SHARED.mkdir(parents=True, exist_ok=True)
    SHARED.chmod(0o777)
    file = KIND / "cluster.yaml"
    file.write_text(config)
    # `--retain`: the nodes of a cluster that did not come up say why.
    argv = ("--config", file, "--image", image, "--kubeconfig", KUBECONFIG, "--wait", "600s", "--retain")
    run(BIN / "kind", "create", "cluster", *argv)
    manifests = HERE / "manifests"
    kubectl("apply", "--validate=false", "--filename", str(manifests / "storage-class.yaml"))
    storage = ("--namespace", "local-path-storage")
    kubectl(*storage, "patch", "configmap/local-path-config", "--patch-file", str(manifests / "storage-patch.yaml"))
    kubectl(*storage, "rollout", "restart", "deployment/local-path-provisioner")
    kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=600s")
    for namespace, deployment in (("kube-system", "coredns"), ("local-path-storage", "local-path-provisioner")):
        kubectl("--namespace", namespace, "rollout", "status", f"deployment/{deployment}", "--timeout=600s")


def run_in_shell(argv: list[str]) -> int:
    """Run a program as in a shell that evaluated `make kind-env`, with this terminal; its exit code."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(argv, env={**os.environ, **environment(), "PATH": path}, check=False).returncode


def environment() -> dict[str, str]:
    """What a shell needs for this cluster, PATH aside."""
    found = {"KUBECONFIG": str(KUBECONFIG)}
    return {**found, "DOCKER_HOST": docker.host()} if docker.running() else found
