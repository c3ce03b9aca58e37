"""Write every generated file again from its source: `make generate`. Tests compare the committed bytes."""

import subprocess
import sys
from pathlib import Path

from torchyard.api.crd import crd_yaml
from torchyard.api.reference import reference_markdown

ROOT = Path(__file__).resolve().parent.parent
WORKLOADS = ("cvrp", "vecrl")


def main() -> None:
    """Generate the CRD, the reference page and the parameter schemas."""
    write("charts/torchyard/files/trainingjobs.yaml", crd_yaml())
    write("docs/reference/trainingjob.md", reference_markdown())
    for name in WORKLOADS:
        # Rooms never import each other: the trainer room describes its parameters in a process of its own.
        schema = subprocess.run(
            [sys.executable, "-m", "torchyard_trainers", "schema", name], check=True, capture_output=True, text=True
        )
        write(f"operator/torchyard/api/params/{name}.json", schema.stdout)


def write(path: str, text: str) -> None:
    """Write one file below the repository's root and say so."""
    (ROOT / path).write_text(text, encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
