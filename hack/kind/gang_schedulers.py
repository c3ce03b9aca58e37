"""Gang schedulers in the cluster: the real programs, compiled from their Go modules, as Deployments beside it.

Each gets its own namespace, all rights and the definitions of its module. Its programs are files of the control plane,
mounted into an image that every node has.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binaries import KUBERNETES, SCHEDULERS, programs, source_of
from cache import HERE, digest
from shell import run, say, step, succeeds

CONFIGURATIONS = HERE / "schedulers"
MADE_FROM = "torchyard.dev/made-from"
PKI = "/etc/kubernetes/pki"
WEBHOOK_CERTIFICATES = "/tmp/k8s-webhook-server/serving-certs"

Kubectl = Callable[..., str]
Manifest = dict[str, Any]


@dataclass(frozen=True)
class GangScheduler:
    """How a scheduler is installed.

    `definitions`: folders of CRDs in its module. `programs`: of its Deployment, with their arguments; each reads its
    configuration from /config/config.yaml. `certificates`: folders in which they look for the certificate and key of
    their servers.
    """

    module: str
    definitions: tuple[str, ...]
    programs: dict[str, tuple[str, ...]]
    certificates: tuple[str, ...] = ()


INSTALLATIONS = {
    "kueue": GangScheduler(
        "sigs.k8s.io/kueue",
        ("config/components/crd/bases",),
        {"kueue": ("--config=/config/config.yaml", "--zap-log-level=2")},
        (WEBHOOK_CERTIFICATES, "/etc/kueue/metrics/certs", "/visibility"),
    ),
    "volcano": GangScheduler(
        "volcano.sh/volcano",
        ("config/crd/volcano/bases", "config/crd/jobflow/bases"),
        {
            "scheduler": ("--logtostderr", "--leader-elect=false", "--scheduler-conf=/config/config.yaml"),
            "controller-manager": ("--logtostderr", "--leader-elect=false"),
        },
    ),
    "coscheduling": GangScheduler(
        "sigs.k8s.io/scheduler-plugins",
        ("config/crd/bases",),
        {"scheduler": ("--config=/config/config.yaml",), "controller": ("--qps=300", "--burst=600")},
    ),
    # Its webhooks are not installed: they set defaults, which the benchmark's objects have.
    "jobset": GangScheduler(
        "sigs.k8s.io/jobset",
        ("config/components/crd/bases",),
        {"jobset": ("--config=/config/config.yaml", "--zap-devel=false")},
        (WEBHOOK_CERTIFICATES,),
    ),
}


def names(text: str) -> tuple[str, ...]:
    """Return the schedulers of a list with commas.

    Raises:
        RuntimeError: one of them is none that the test bed can install.
    """
    chosen = tuple(filter(None, (name.strip() for name in text.split(","))))
    unknown = [name for name in chosen if name not in INSTALLATIONS]
    if unknown:
        raise RuntimeError(f"SCHEDULERS={text}: no {', '.join(unknown)} here; use {','.join(INSTALLATIONS)}")
    return chosen


def built() -> tuple[str, ...]:
    """Return the schedulers whose programs are in the cache."""
    return tuple(name for name in INSTALLATIONS if programs(SCHEDULERS[name], compile_missing=False).exists())


def install(chosen: tuple[str, ...], control_plane: str, kubectl: Kubectl) -> None:
    """Have these schedulers run in the cluster; one that runs from the same inputs is left alone.

    Args:
        chosen: names of schedulers.
        control_plane: container of the node on which they run.
        kubectl: runs kubectl on the cluster and returns its output.
    """
    for name in chosen:
        folder = programs(SCHEDULERS[name])
        made_from = digest(Path(__file__), CONFIGURATIONS / f"{name}.yaml", folder.name)
        where = ("--namespace", _namespace(name), "get", "deployment", name, "--ignore-not-found", "--output")
        if made_from in kubectl(*where, f"jsonpath={{.metadata.annotations.{MADE_FROM.replace('.', chr(92) + '.')}}}"):
            kubectl("--namespace", _namespace(name), "scale", f"deployment/{name}", "--replicas=1")
        else:
            with step(f"installing {name}", usual="20 s"):
                _install(name, folder, made_from, control_plane, kubectl)
        kubectl("--namespace", _namespace(name), "rollout", "status", f"deployment/{name}", "--timeout=300s")
        say(f"{name} runs in namespace {_namespace(name)}")


def _install(name: str, folder: Path, made_from: str, control_plane: str, kubectl: Kubectl) -> None:
    module = source_of(SCHEDULERS[name], INSTALLATIONS[name].module)
    apply = ("apply", "--server-side", "--force-conflicts", "--validate=false", "--filename")
    for definitions in INSTALLATIONS[name].definitions:
        kubectl(*apply, str(module / definitions))
    place = f"/usr/local/lib/torchyard/{folder.name}"
    if not succeeds("docker", "exec", control_plane, "test", "-d", place):
        run("docker", "exec", control_plane, "mkdir", "-p", place)
        run("docker", "cp", f"{folder}/.", f"{control_plane}:{place}")
    objects = [*_objects(name, place, made_from)]
    if name == "kueue":
        manifests = module / "config" / "components" / "webhook" / "manifests.yaml"
        described = ("create", "--dry-run=client", "--validate=false", "--output=json", "--filename", str(manifests))
        authority = run("docker", "exec", control_plane, "base64", "--wrap=0", f"{PKI}/ca.crt")
        objects += _kueue_webhooks(kubectl(*described), authority)
    kubectl(*apply, "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def _objects(name: str, place: str, made_from: str) -> Iterator[Manifest]:
    namespace, labels = _namespace(name), {"app": name}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    yield {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    metadata = {"name": name, "namespace": namespace}
    configuration = {"config.yaml": (CONFIGURATIONS / f"{name}.yaml").read_text()}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": configuration}
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata, "annotations": {MADE_FROM: made_from}},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # on the node's own network two would want the same ports
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {MADE_FROM: made_from}},
                "spec": _pod(name, place),
            },
        },
    }
    if name == "kueue":
        yield from _visibility(namespace, labels)


def _pod(name: str, place: str) -> Manifest:
    files = {"program": (place, "/program"), **_certificates(name)}
    mounts = [{"name": each, "mountPath": path, "readOnly": True} for each, (_, path) in files.items()]
    volumes = [{"name": each, "hostPath": {"path": path}} for each, (path, _) in files.items()]
    container = {
        "image": f"registry.k8s.io/kube-proxy:{KUBERNETES}",
        "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [*mounts, {"name": "config", "mountPath": "/config"}],
    }
    # Kueue is ready once its webhooks answer; the others need no probe.
    probe = {"httpGet": {"path": "/readyz", "port": 8081}, "periodSeconds": 1}
    return {
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
        "terminationGracePeriodSeconds": 1,
        # The API server reaches its webhooks at 127.0.0.1.
        "hostNetwork": name == "kueue",
        "dnsPolicy": "ClusterFirstWithHostNet" if name == "kueue" else "ClusterFirst",
        "containers": [
            {"name": program, "command": [f"/program/{program}", *arguments], **container}
            | ({"readinessProbe": probe} if name == "kueue" else {})
            for program, arguments in INSTALLATIONS[name].programs.items()
        ],
        "volumes": [*volumes, {"name": "config", "configMap": {"name": name}}],
    }


def _certificates(name: str) -> dict[str, tuple[str, str]]:
    """Return by name of a volume: the file on the node, and where the program looks for it."""
    pair = {"tls.crt": f"{PKI}/apiserver.crt", "tls.key": f"{PKI}/apiserver.key"}
    return {
        f"{file.replace('.', '-')}-{number}": (source, f"{folder}/{file}")
        for number, folder in enumerate(INSTALLATIONS[name].certificates)
        for file, source in pair.items()
    }


def _visibility(namespace: str, labels: dict[str, str]) -> Iterator[Manifest]:
    """Yield what makes the API server serve Kueue's list of pending Workloads."""
    name, port = "visibility-server", 8082
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": labels, "ports": [{"port": 443, "targetPort": port}]},
    }
    group = "visibility.kueue.x-k8s.io"
    yield {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1beta2.{group}"},
        "spec": {
            "group": group,
            "version": "v1beta2",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"name": name, "namespace": namespace},
        },
    }


def _kueue_webhooks(described: str, authority: str) -> list[Manifest]:
    """Return Kueue's webhooks for its own kinds (pure).

    Args:
        described: its configurations of webhooks, JSON documents one after the other.
        authority: certificate of the authority that signed its own, in base64.
    """
    decoder, text, configurations = json.JSONDecoder(), described.strip(), []
    while text:
        document, end = decoder.raw_decode(text)
        configurations += document["items"] if document["kind"] == "List" else [document]
        text = text[end:].lstrip()
    for each in configurations:
        each["metadata"] = {"name": f"kueue-{each['metadata']['name']}"}
        each["webhooks"] = [
            webhook for webhook in each["webhooks"] if webhook["rules"][0]["apiGroups"] == ["kueue.x-k8s.io"]
        ]
        for webhook in each["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"https://127.0.0.1:9443{path}", "caBundle": authority}
    return configurations


def _namespace(name: str) -> str:
    return f"{name}-system"
