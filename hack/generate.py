"""Write every generated file again from its source: `make generate`; with `--check`, name those that differ instead."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from chart_readme import README as CHART_README
from chart_readme import chart_readme
from packaging.markers import Marker
from parameters import parameters_markdown
from python_reference import python_markdown

from torchyard.api.crd import crd_yaml
from torchyard.api.profiles import reference as profile_reference
from torchyard.api.profiles.crd import profile_crd_yaml, profile_limits_yaml
from torchyard.api.reference import reference_markdown
from torchyard.api.values import BUILT_IN
from torchyard.client.requirements.target import DEFAULT_PYTHON, markers_of
from torchyard.sweeps import reference as sweep_reference
from torchyard.sweeps.crd import sweep_crd_yaml
from torchyard.sweeps.schema import file_schema

ROOT = Path(__file__).resolve().parent.parent


def generated() -> Iterator[tuple[Path, str]]:
    """Yield path and text of the CRDs, the chart's README, the parameter schemas and the reference pages."""
    yield ROOT / "charts/torchyard/files/trainingjobs.yaml", crd_yaml()
    yield ROOT / "charts/torchyard/files/trainingsweeps.yaml", sweep_crd_yaml()
    yield ROOT / "charts/torchyard/files/trainingprofiles.yaml", profile_crd_yaml()
    yield ROOT / "charts/torchyard/files/profile-limits.yaml", profile_limits_yaml()
    yield CHART_README, chart_readme()
    yield ROOT / "docs/reference/trainingjob.md", reference_markdown()
    yield ROOT / "docs/reference/trainingsweep.md", sweep_reference.reference_markdown()
    yield ROOT / "docs/reference/trainingprofile.md", profile_reference.reference_markdown()
    yield ROOT / "docs/reference/schema.json", json.dumps(file_schema(), indent=1) + "\n"
    yield ROOT / "docs/reference/python-api.md", python_markdown()
    yield ROOT / "operator/torchyard/client/requirements/trainer_image.txt", trainer_image()
    for name in BUILT_IN:
        # In a separate process, since the operator and the trainers never import each other.
        command = [sys.executable, "-m", "torchyard_trainers", "schema", name]
        schema = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        yield ROOT / f"operator/torchyard/api/params/{name}.json", schema
        yield ROOT / f"docs/reference/{name}.md", parameters_markdown(name, schema)


def trainer_image() -> str:
    """Return the packages of the trainer image on its Python and platform, as lines `NAME==VERSION`."""
    markers = markers_of(DEFAULT_PYTHON, "x86_64")
    lines = ["# Written by `make generate` from images/trainer.lock."]
    for line in (ROOT / "images/trainer.lock").read_text(encoding="utf-8").splitlines():
        pin, _, marker = line.removesuffix("\\").strip().partition(" ; ")
        if re.match(r"\w", pin) and (not marker or Marker(marker).evaluate(markers)):
            lines.append(pin.strip())
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the files, or compare them."""
    check = sys.argv[1:] == ["--check"]
    stale = []
    for path, text in generated():
        if check and not (path.exists() and path.read_text(encoding="utf-8") == text):
            stale.append(str(path.relative_to(ROOT)))
        elif not check:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
    if stale:
        sys.exit(f"not what their sources say: {', '.join(stale)}; run: make generate")


if __name__ == "__main__":
    main()
