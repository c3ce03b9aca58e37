"""The workflow that publishes a release: pinned, without secrets, and of commands that exist. It cannot be run here."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / ".github/workflows/release.yaml").read_text()
WORKFLOW = yaml.safe_load(TEXT)
JOBS = WORKFLOW["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]
RUNS = "\n".join(step["run"] for _, step in STEPS if "run" in step)


def test_every_action_is_pinned_by_commit_with_its_version():
    used = re.findall(r"uses: (\S+)(.*)", TEXT)
    assert len(used) == len([step for _, step in STEPS if "uses" in step])
    for action, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v[0-9]+\.[0-9]+\.[0-9]+", comment), f"{action}: no version behind it"


def test_jobs_have_only_the_rights_that_they_need_and_no_secret():
    assert WORKFLOW["permissions"] == {}
    assert "secrets." not in TEXT
    writing = {
        name: {right for right, how in job["permissions"].items() if how == "write"} for name, job in JOBS.items()
    }
    assert writing == {
        "build": set(),
        "images": {"packages", "id-token"},
        "package-index": {"id-token"},
        "page": {"contents"},
    }
    for name in writing.keys() - {"build"}:
        assert JOBS[name]["environment"] == "release", f"{name} publishes without the approval of the environment"
        assert "build" in JOBS[name]["needs"], f"{name} publishes what was not compared"


def test_it_makes_only_what_the_makefile_has():
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in re.findall(r"\bmake (.*)", RUNS):
        words = [word for word in re.sub(r"-C \S+", "", line).split() if "=" not in word]
        assert words, line
        assert set(words) <= targets, line


def test_it_publishes_the_files_and_layouts_that_a_release_writes():
    source = (ROOT / "hack/release.py").read_text()
    for name in re.findall(r"dist/([\w.-]*[A-Za-z])", RUNS):
        base = name.removesuffix(".sigstore.json").split("-")[0]
        assert base in source or (ROOT / f"hack/{base}.py").exists() or base in {"oci", "torchyard"}, name
    wanted = re.search(r"TARGETS=(\S+)", RUNS)[1].split(",")
    known = re.search(r"^TARGETS = \((.*)\)$", source, re.MULTILINE)[1]
    assert all(f'"{each}"' in known for each in wanted)


@pytest.mark.parametrize("tag", ["v0.1.0", "v10.20.30"])
def test_it_runs_for_tags_of_versions_alone(tag):
    (pattern,) = WORKFLOW[True]["push"]["tags"]  # YAML 1.1 reads the key `on` as true
    assert re.fullmatch(pattern.replace(".", r"\."), tag)
    assert not re.fullmatch(pattern.replace(".", r"\."), "v0.1.0-rc1")
