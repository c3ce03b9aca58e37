"""`make kind-demo`: TorchYard installed by Helm, a job on two nodes, watched until it has learned something."""

import cluster
from cluster import BIN, KUBECONFIG
from images import ROOT
from shell import run, say, step

NAMESPACE = "torchyard-system"
IMAGES = "image.repository=torchyard/operator,image.tag=dev,trainerImage=torchyard/trainer-cpu:dev"
TORCHYARD = ROOT / ".venv" / "bin" / "torchyard"


def demo() -> int:
    """Install the chart, submit the first example, watch it; its exit code. What was installed stays."""
    with step("installing the chart", usual="under a minute"):
        where = ("--kubeconfig", KUBECONFIG, "--namespace", NAMESPACE, "--create-namespace")
        chart = ("torchyard", ROOT / "charts" / "torchyard", "--set", IMAGES)
        # Tests may have left the resource, which a release otherwise refuses to own.
        take = ("--take-ownership", "--force-conflicts")
        run(BIN / "helm", "upgrade", "--install", *chart, *where, *take, "--wait", "--timeout", "3m")
    cluster.kubectl("--namespace", "default", "delete", "trainingjob", "cvrp", "--ignore-not-found")
    example = ROOT / "examples" / "cvrp.yaml"
    code = cluster.run_in_shell([str(TORCHYARD), "submit", str(example), "--watch", "--namespace", "default"])
    say('look around: eval "$(make -s kind-env)"; kubectl describe tj cvrp; torchyard explain cvrp')
    return code
