"""Render the chart with its defaults into charts/plain.yaml, and into dist/ beside the resource: `make manifests`.

`torchyard install` applies these objects where there is no Helm. The resource stands apart from the operator, since
deleting it deletes every TrainingJob. The CA is in neither, for everybody would have its key: `torchyard install`
creates one, and docs/installation.md says how to do it by hand.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from torchyard.api.crd import crd_yaml
from torchyard.api.profiles.crd import profile_crd_yaml
from torchyard.sweeps.crd import sweep_crd_yaml

ROOT = Path(__file__).resolve().parent.parent
PLAIN = ROOT / "charts/plain.yaml"
NAMESPACE = "torchyard-system"
VALUES = {"crds": {"install": False}}
HEADER = "# Rendered from charts/torchyard by `make manifests`. Without Helm, `torchyard install` applies it.\n"
HELMS_OWN = ("helm.sh/chart", "app.kubernetes.io/managed-by")


def main(folder: Path) -> None:
    """Write charts/plain.yaml, and crd.yaml and operator.yaml into `folder`."""
    PLAIN.write_text(plain(), encoding="utf-8")
    print(PLAIN)
    write(folder)


def write(folder: Path) -> None:
    """Write crd.yaml and operator.yaml.

    Raises:
        ValueError: charts/plain.yaml is not what the chart renders.
    """
    text = plain()
    if not PLAIN.exists() or PLAIN.read_text(encoding="utf-8") != text:
        raise ValueError("charts/plain.yaml is not what the chart renders; run `make manifests` and commit it")
    folder.mkdir(parents=True, exist_ok=True)
    operator = yaml.safe_dump(namespace(), sort_keys=False) + "---\n" + text
    definitions = f"{crd_yaml()}---\n{sweep_crd_yaml()}---\n{profile_crd_yaml()}"
    for name, content in (("crd.yaml", definitions), ("operator.yaml", operator)):
        (folder / name).write_text(content, encoding="utf-8")
        print(folder / name)


def plain() -> str:
    """Return the objects that the chart installs by default, without its resources, its CA and the labels of Helm."""
    objects = [without_helm(document) for document in rendered() if document["kind"] != "Secret"]
    return HEADER + yaml.safe_dump_all(objects, sort_keys=False, width=120)


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
