"""What the documents promise is there: links resolve, and `make` names every target the README speaks of."""

import re
import subprocess
from pathlib import Path

import pytest

from torchyard.api.launch import DEFAULT_ENV
from torchyard.api.validation.validate import validate_file

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "charts/torchyard/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(document):
    targets = re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (document.parent / target).exists()]
    assert not missing


def test_make_alone_lists_every_target_that_the_readme_names():
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = set(re.findall(r"\bmake ([a-z][a-z0-9-]*)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert {"demo", "test", "install"} <= named
    assert named <= {line.split()[0] for line in listed.splitlines()}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_job_that_a_document_shows_is_valid(document, tmp_path):
    for block in re.findall(r"^```yaml\n(.*?)^```", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        if "kind: TrainingJob" in block and "metadata" in block:
            file = tmp_path / "job.yaml"
            file.write_text(block)
            assert validate_file(file, ()).problems == (), block


def test_the_protocol_lists_the_variables_that_are_set_unless_given():
    text = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    assert [name for name in DEFAULT_ENV if f"`{name}" not in text] == []
