"""Write the installation as plain YAML into dist/, for people without Helm: `make manifests`.

The chart is the one source. The resource stands apart from the operator, since deleting it deletes every
TrainingJob; a certificate is in neither, for everybody would have its key (docs/installation.md says how to make one).
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from torchyard.api.crd import crd_yaml
from torchyard.sweeps.crd import sweep_crd_yaml

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = "torchyard-system"
VALUES = {"crds": {"install": False}, "tls": {"existingSecret": "torchyard-intake-tls"}}
HELMS_OWN = ("helm.sh/chart", "app.kubernetes.io/managed-by")


def main(folder: Path) -> None:
    """Write crd.yaml and operator.yaml."""
    folder.mkdir(parents=True, exist_ok=True)
    operator = yaml.safe_dump_all([namespace(), *map(without_helm, rendered())], sort_keys=False, width=120)
    for name, text in (("crd.yaml", f"{crd_yaml()}---\n{sweep_crd_yaml()}"), ("operator.yaml", operator)):
        (folder / name).write_text(text, encoding="utf-8")
        print(folder / name)


def rendered() -> list[dict[str, Any]]:
    """Every object of a release."""
    argv = [helm(), "template", "torchyard", ROOT / "charts/torchyard", "--namespace", NAMESPACE, "--no-hooks"]
    done = subprocess.run(
        [*map(str, argv), "--values", "-"], input=yaml.safe_dump(VALUES), stdout=subprocess.PIPE, text=True, check=True
    )
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def helm() -> Path:
    """The machine's Helm, else the one of the test bed, compiled if need be."""
    if found := shutil.which("helm"):
        return Path(found)
    argv = [sys.executable, ROOT / "hack/kind", "program", "helm"]
    return Path(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())


def namespace() -> dict[str, Any]:
    """The operator's namespace, which lets nothing run that could harm its node."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def without_helm(document: dict[str, Any]) -> dict[str, Any]:
    """The same object, not said to be Helm's."""
    labels = document["metadata"]["labels"]
    kept = {name: value for name, value in labels.items() if name not in HELMS_OWN}
    return document | {"metadata": document["metadata"] | {"labels": kept}}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
