"""Metadata of a release: its parts, where they come from, and that they were checked."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from tests.support.charts import HELM, needs_helm

ROOT = Path(__file__).parents[2]


def load(name):
    spec = importlib.util.spec_from_file_location(f"hack_{name}", ROOT / f"hack/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "hack"))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "hack"))
    return module


audit, release, sbom = load("audit"), load("release"), load("sbom")
LOCK = """\
aiohttp==3.14.5 \\
    --hash=sha256:1111111111111111111111111111111111111111111111111111111111111111
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:2222222222222222222222222222222222222222222222222222222222222222
Ruamel_Yaml==1.0 \\
    --hash=sha256:3333333333333333333333333333333333333333333333333333333333333333
"""


def sound(name, version="1.0"):
    return {"name": name, "version": version, "vulns": []}


@pytest.mark.parametrize(
    ("found", "faults"),
    [
        ([], ["aiohttp 3.14.5 was not audited", "ruamel-yaml 1.0 was not audited"]),
        ([sound("aiohttp", "3.14.5"), sound("ruamel.yaml")], []),
        ([sound("aiohttp", "3.14.5"), {"name": "ruamel-yaml", "skip_reason": "unknown"}], ["was not audited: unknown"]),
        (
            [sound("ruamel-yaml"), sound("aiohttp", "3.14.5") | {"vulns": [{"id": "PYSEC-1", "fix_versions": ["4"]}]}],
            ["aiohttp 3.14.5 has PYSEC-1, fixed in 4"],
        ),
    ],
)
def test_an_audit_fails_for_a_vulnerability_and_for_whatever_it_did_not_look_at(found, faults):
    said = audit.judge(audit.packages(LOCK), found)
    assert all(any(fault in each for each in said) for fault in faults)
    assert bool(said) == bool(faults)


def test_an_audit_of_nothing_fails(tmp_path):
    assert audit.judge([], []) == ["it pins no package: nothing was audited"]
    (tmp_path / "empty.lock").write_text("")
    done = subprocess.run(
        [sys.executable, ROOT / "hack/audit.py", tmp_path / "empty.lock"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "nothing" in done.stderr


def test_an_audit_that_reaches_no_index_fails(tmp_path):
    lock = tmp_path / "one.lock"
    lock.write_text(f"jinja2==2.11.2 --hash=sha256:{'0' * 64}\n")
    nowhere = dict.fromkeys(("HTTPS_PROXY", "https_proxy", "ALL_PROXY"), "http://127.0.0.1:9")  # nothing listens there
    done = subprocess.run(
        [sys.executable, ROOT / "hack/audit.py", lock],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | nowhere | {"ADVISORIES": "", "NO_PROXY": "", "no_proxy": ""},
    )
    assert done.returncode == 1
    assert "one.lock: nothing was audited: pip-audit ended with code 1" in done.stderr


def advisory(code, name, *events, versions=(), **more):
    """One advisory as OSV exports it."""
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}] if events else []
    affected = {"package": {"ecosystem": "PyPI", "name": name}, "ranges": ranges, "versions": list(versions)}
    return {"id": code, "modified": "2026-11-01T00:00:00Z", "affected": [affected], **more}


ADVISORIES = [
    advisory("PYSEC-1", "aiohttp", {"introduced": "3.9"}, {"fixed": "3.14.5"}),
    advisory("PYSEC-2", "aiohttp", {"introduced": "0"}, {"fixed": "3.9"}, {"introduced": "3.14.0"}, {"fixed": "3.15"}),
    advisory("PYSEC-3", "ruamel.yaml", {"introduced": "0"}, {"last_affected": "0.9"}),
    advisory("PYSEC-4", "Ruamel-YAML", versions=["1.0"]),
    advisory("PYSEC-5", "aiohttp", {"introduced": "0"}, withdrawn="2026-11-02T00:00:00Z"),
    advisory("PYSEC-6", "colorama", {"introduced": "0"}),  # of another platform
]


@pytest.mark.parametrize("form", ["json", "yaml", "zip"])
def test_an_audit_reads_a_copy_of_the_advisory_database(tmp_path, form):
    lock = tmp_path / "requirements.lock"
    lock.write_text(LOCK)
    database = tmp_path / "vulns"
    database.mkdir()
    for each in ADVISORIES:
        text = yaml.safe_dump(each) if form == "yaml" else json.dumps(each)
        (database / f"{each['id']}.{'yaml' if form == 'yaml' else 'json'}").write_text(text)
    if form == "zip":
        database = Path(shutil.make_archive(str(tmp_path / "all"), "zip", database))
    done = audited(lock, database)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "requirements.lock: aiohttp 3.14.5 has PYSEC-2, fixed in 3.15, 3.9",
        "requirements.lock: ruamel-yaml 1.0 has PYSEC-4, fixed in no version",
    ]


def test_an_audit_with_a_copy_that_holds_nothing_fails_and_one_without_a_finding_says_how_old_it_is(tmp_path):
    lock = tmp_path / "requirements.lock"
    lock.write_text(LOCK)
    (tmp_path / "vulns").mkdir()
    empty = audited(lock, tmp_path / "vulns")
    assert empty.returncode == 1
    assert "nothing was audited" in empty.stderr
    (tmp_path / "vulns/PYSEC-1.json").write_text(json.dumps(ADVISORIES[0]))
    done = audited(lock, tmp_path / "vulns")
    assert done.returncode == 0, done.stderr
    assert "2 packages audited, no known vulnerability (1 advisories in" in done.stdout
    assert "the newest of 2026-11-01" in done.stdout


def audited(lock, database):
    command = [sys.executable, ROOT / "hack/audit.py", lock]
    env = {**os.environ, "ADVISORIES": str(database)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def test_the_whole_lock_is_seen():
    text = (ROOT / "requirements.lock").read_text()
    assert len(audit.packages(text)) == sum("==" in line for line in text.splitlines()) > 100


@pytest.mark.parametrize("name", ["wheel", *sbom.IMAGES])
def test_a_bill_of_materials_is_valid_and_names_what_is_installed(tmp_path, name):
    sbom.main(tmp_path)
    text = (tmp_path / f"torchyard-{name}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    listed = defaultdict(list)
    for part in document["components"]:
        listed[part["name"]].append(part)
    for lock in sbom.IMAGES.get(name, (None, ()))[1]:
        for package, version, _ in audit.packages((ROOT / lock).read_text()):
            assert any(part["version"] == version and part["hashes"] for part in listed[package])
    if name in ("operator", "trainer"):
        assert listed["docker.io/library/python" if name == "operator" else "docker.io/nvidia/cuda"][0]["hashes"]
    if name == "wheel":
        assert {"aiohttp", "kopf", "torch"} <= listed.keys()
        assert "pytest" not in listed


def test_a_release_names_its_images_by_digest():
    values = (ROOT / "charts/torchyard/values.yaml").read_text()
    digest = f"sha256:{'a' * 64}"
    read = yaml.safe_load(release.with_digests(values, dict.fromkeys(release.TARGETS, digest)))
    assert read["image"]["digest"] == digest
    assert read["trainerImage"] == f"ghcr.io/torchyard/trainer@{digest}"
    assert read["agentImage"] == "", "pods copy the agent with a Python, which the image `agent` lacks"
    with pytest.raises(ValueError, match="is not a digest"):
        release.with_digests(values, {"operator": "latest"})


def test_provenance_names_every_artefact_the_commit_and_the_locks():
    said = release.statement({"x.whl": "1" * 64}, {"operator": f"sha256:{'2' * 64}"}, "3" * 40)
    assert [each["digest"]["sha256"][0] for each in said["subject"]] == ["1", "2"]
    commit, *locks = said["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert commit["digest"] == {"gitCommit": "3" * 40}
    assert {each["uri"] for each in locks} >= {"requirements.lock", "images/operator.lock"}


def test_versions_of_the_tree_agree_and_one_that_differs_is_named():
    stated = release.versions(ROOT)
    assert len(stated) == 5
    version = release.agreed_version(stated)
    assert release.notes_of(version, (ROOT / "CHANGELOG.md").read_text()).startswith(f"## [{version}]")
    with pytest.raises(ValueError, match=r"tag v9\.9\.9: 9\.9\.9"):
        release.agreed_version(stated | {"tag v9.9.9": "9.9.9"})


def test_notes_are_the_section_of_their_version():
    changelog = "# Changelog\n\n## [1.1.0]\n\n- New.\n\n## [1.0.0] - 2026-01-01\n\n### Added\n\n- Old.\n"
    assert release.notes_of("1.1.0", changelog) == "## [1.1.0]\n\n- New.\n"
    assert release.notes_of("1.0.0", changelog).endswith("### Added\n\n- Old.\n")
    with pytest.raises(ValueError, match=r"no section `## \[1\.0\]`"):
        release.notes_of("1.0", changelog)


@needs_helm
def test_a_chart_has_the_same_bytes_whenever_and_under_whatever_umask_it_was_cloned(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setenv("PATH", f"{HELM.rpartition('/')[0]}:/usr/bin:/bin")
    packages = []
    for name, time, mode in (("early", 1_600_000_000, 0o644), ("late", 1_750_000_000, 0o600)):
        chart, folder = tmp_path / name / "torchyard", tmp_path / f"dist-{name}"
        shutil.copytree(ROOT / "charts/torchyard", chart)
        folder.mkdir()
        for path in chart.rglob("*"):
            os.utime(path, (time, time))
            path.chmod(mode | (0o111 if path.is_dir() else 0))
        release.write_chart(chart, folder, {})
        [package] = folder.iterdir()
        packages.append(package.read_bytes())
    assert packages[0] == packages[1]
