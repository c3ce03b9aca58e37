"""NetworkPolicies enforced on the node image that we build, by the project of Kubernetes that does it in userspace.

Its own nftables rule needs a kernel with CONFIG_NFT_QUEUE; an iptables rule hands packets to the same queue on any
kernel. On kind's stock image its own pod network enforces them.
"""

from pathlib import Path

from binaries import KUBERNETES, Family, programs
from cache import HERE, digest
from shell import run, step

FAMILY = Family("network-policies", ("sigs.k8s.io/kube-network-policies/cmd",), "1 min")
MANIFEST = HERE / "network-policies.yaml"
PROGRAM = "/usr/local/bin/kube-network-policies"
CURRENT = "jsonpath={.metadata.annotations.torchyard\\.dev/made-from}"
OBJECT = (
    "--namespace",
    "kube-system",
    "get",
    "daemonset",
    "network-policies",
    "--ignore-not-found",
    "--output",
    CURRENT,
)


def enforce(nodes: tuple[str, ...], kubectl: tuple[str | Path, ...]) -> None:
    """Have the nodes enforce NetworkPolicies; returns when they do.

    Args:
        nodes: containers of kind that run the image that we build.
        kubectl: command line up to kubectl's own arguments.
    """
    made_from = digest(HERE / "go" / FAMILY.folder, MANIFEST, PROGRAM)
    if run(*kubectl, *OBJECT).strip() == made_from:
        return
    program = programs(FAMILY) / "cmd"
    with step("enforcing network policies", usual="10 s"):
        for node in nodes:
            run("docker", "cp", program, f"{node}:{PROGRAM}")
        manifest = MANIFEST.read_text().replace("@KUBERNETES@", KUBERNETES).replace("@MADE_FROM@", made_from)
        # A busy API server takes longer to describe its types, for validation, than kubectl waits.
        run(*kubectl, "apply", "--validate=false", "--filename", "-", text=manifest)
        rollout = ("rollout", "status", "daemonset/network-policies", "--timeout=600s")
        run(*kubectl, "--namespace", "kube-system", *rollout)
