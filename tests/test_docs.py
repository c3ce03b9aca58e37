"""What the documents promise is there: links resolve, code blocks are valid, `make` names the targets of the README."""

import re
import subprocess
from pathlib import Path

import pytest
from tests.support.documentation import Block, blocks, problems

from torchyard.api.launch import DEFAULT_ENV

ROOT = Path(__file__).resolve().parent.parent
ARCHIVES = ("decisions", "notebook")  # pages on how things were
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "charts/torchyard/README.md",
    ROOT / "images/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGES = [page for page in DOCUMENTS if page.parent.name not in ARCHIVES]


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


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.name)
def test_every_code_block_is_valid(document):
    wrong = [f"line {block.line}: {each}" for block in blocks(document) for each in problems(block)]
    assert not wrong


@pytest.mark.parametrize(
    ("language", "text", "problem"),
    [
        ("console", "$ torchyard run x.py --nosuch 1\n", "--nosuch"),
        ("bash", "kubectl torchyard statsu x", "no such command"),
        ("bash", "for x in; do", "syntax error"),
        ("bash", "make install nosuch", "no such target"),
        ("yaml", "spec: {nodess: 3}", "nodess"),
        ("yaml", "schedulers: {nosuch: true}", "nosuch"),
        ("python", "import torchyard as ty\nty.nothing()", "torchyard.nothing does not exist"),
        ("", "x", "no language"),
    ],
)
def test_a_block_that_would_mislead_a_reader_is_found(language, text, problem):
    assert any(problem in each for each in problems(Block(language, text, 1)))


def test_the_protocol_lists_the_variables_that_are_set_unless_given():
    text = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    assert [name for name in DEFAULT_ENV if f"`{name}" not in text] == []
