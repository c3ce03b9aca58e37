"""An upgrade of Kubernetes takes nothing away that TorchYard needs: stable versions of APIs stay for years."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Groups of Kubernetes itself; those of gang schedulers are discovered, and optional.
PATH = re.compile(r"/apis/([a-z]+|[a-z]+(?:\.[a-z]+)*\.k8s\.io)/(v\d\w*)")
MANIFEST = re.compile(r"^\s*apiVersion: ([a-z]+|[a-z]+(?:\.[a-z]+)*\.k8s\.io)/(v\d\w*)\s*$", re.MULTILINE)
OTHERS = {"visibility.kueue.x-k8s.io", "kustomize.config.k8s.io"}


def test_only_stable_versions_of_kubernetes_are_used_without_discovery():
    code = [path for path in (ROOT / "operator").rglob("*.py") if "schedulers" not in path.parts]
    found = {pair for path in code for pair in PATH.findall(path.read_text())}
    found |= {pair for path in (ROOT / "charts").rglob("*.yaml") for pair in MANIFEST.findall(path.read_text())}
    used = {group: version for group, version in found if group not in OTHERS}
    assert {"apps", "coordination.k8s.io", "networking.k8s.io"} <= used.keys()
    assert {group: version for group, version in used.items() if version != "v1"} == {}
