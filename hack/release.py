"""Prepare a release in `dist/`: `make release`. Its images are built by Docker; TARGETS and PLATFORMS choose them.

It holds the wheel, the sources, the chart, plain manifests, bills of materials, notes, images and chart as OCI layouts,
their checksums, and a provenance statement that names their commit. Two clones of one commit give the same bytes.
Images of another machine are named as `IMAGES=trainer=sha256:...`. docs/release.md says how to publish and sign.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import browser_libraries
import manifests
import release_images
import sbom
import yaml
from oci_layout import Layout

from torchyard.client.registry.session import MANIFEST_TYPE

ROOT = Path(__file__).resolve().parent.parent
REGISTRY = "ghcr.io/torchyard"
TARGETS = ("operator", "agent", "trainer-cpu", "trainer")
NOTES, SUMS, PROVENANCE = "RELEASE_NOTES.md", "SHA256SUMS", "provenance.intoto.json"
LAYOUTS = "oci"
CHART_CONFIG = "application/vnd.cncf.helm.config.v1+json"
CHART_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


def main(folder: Path, images: dict[str, str], targets: Sequence[str], platforms: Sequence[str]) -> None:
    """Write everything that a release publishes.

    Args:
        folder: emptied first.
        images: digests of images that were built elsewhere, by target.
        targets: images to build here.
        platforms: of these.

    Raises:
        ValueError: the tree is not that of a commit, versions differ, or something cannot be built.
    """
    commit = clean_commit()
    version = agreed_version(versions(ROOT) | tags(commit))
    notes = notes_of(version, (ROOT / "CHANGELOG.md").read_text())
    # Archives carry the time of the commit, and the modes that a clone has under any umask.
    epoch = git("show", "--no-patch", "--format=%ct", commit)
    os.environ["SOURCE_DATE_EPOCH"] = epoch
    os.umask(0o022)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    browser_libraries.main()
    build = [sys.executable, "-m", "uv", "build", "--quiet", "--no-build-isolation", "--out-dir", str(folder)]
    for kind in ("--wheel", "--sdist"):
        subprocess.run([*build, kind], cwd=ROOT, check=True)
    (folder / ".gitignore").unlink(missing_ok=True)
    origin = release_images.Origin(version, commit, int(epoch))
    images = images | release_images.write(targets, platforms, folder / LAYOUTS, origin)
    manifests.write(folder)
    plain = folder / "operator.yaml"
    plain.write_text(with_digests_of_plain(plain.read_text(), version, images))
    sbom.main(folder)
    write_chart(ROOT / "charts/torchyard", folder, images)
    chart = folder / f"torchyard-{version}.tgz"
    images["charts/torchyard"] = chart_layout(chart, folder / LAYOUTS / "chart", origin.annotations())
    (folder / NOTES).write_text(notes)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    digests = {str(path.relative_to(folder)): sha256(path) for path in files}
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    released = {name: digest for name, digest in digests.items() if not name.startswith(f"{LAYOUTS}/")}
    (folder / PROVENANCE).write_text(json.dumps(statement(released, images, commit), indent=1) + "\n")
    for name, digest in images.items():
        print(f"{REGISTRY}/{name}:{version}@{digest}")
    if missing := {"operator", "trainer"} - images.keys():
        print(f"the chart names {' and '.join(sorted(missing))} by tag, for it was not built: TARGETS or IMAGES add it")


def sha256(path: Path) -> str:
    """Return the digest of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def chart_layout(package: Path, folder: Path, stated: dict[str, str]) -> str:
    """Write a chart as the OCI artifact that `helm push` makes, without the time of the push; return its digest."""
    with tarfile.open(package) as archive:
        file = archive.extractfile("torchyard/Chart.yaml")
        assert file is not None, "a chart has a Chart.yaml"
        metadata = yaml.safe_load(file)
    layout = Layout(folder)
    titled = {"org.opencontainers.image.title": metadata["name"]}
    described = {"org.opencontainers.image.description": metadata["description"]}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": layout.document(metadata, CHART_CONFIG),
        "layers": [layout.blob(package.read_bytes(), CHART_CONTENT)],
        "annotations": titled | described | stated,
    }
    return layout.finish([layout.document(manifest, MANIFEST_TYPE)], metadata["version"], {})


def write_chart(source: Path, folder: Path, images: dict[str, str]) -> None:
    """Package a chart into `folder`, with its images named by digest. Helm takes the times from SOURCE_DATE_EPOCH."""
    with tempfile.TemporaryDirectory() as scratch:
        chart = Path(scratch) / "torchyard"
        shutil.copytree(source, chart)
        values = chart / "values.yaml"
        values.write_text(with_digests(values.read_text(), images))
        for path in (chart, *chart.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        subprocess.run([str(manifests.helm()), "package", str(chart), "--destination", str(folder)], check=True)


def versions(root: Path) -> dict[str, str]:
    """Return the version that each file of the working tree states, by the place of the statement."""
    chart = yaml.safe_load((root / "charts/torchyard/Chart.yaml").read_text())
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    statements = {
        "operator/torchyard/version.py": r'(?m)^__version__ = "(.+)"$',
        "Dockerfile": r"(?m)^ARG VERSION=(.+)$",
    }
    stated = {path: re.findall(form, (root / path).read_text()) for path, form in statements.items()}
    return {
        "pyproject.toml": project["version"],
        "charts/torchyard/Chart.yaml version": str(chart["version"]),
        "charts/torchyard/Chart.yaml appVersion": str(chart["appVersion"]),
        **{path: ", ".join(values) or "none" for path, values in stated.items()},
    }


def tags(commit: str) -> dict[str, str]:
    """Return the version of each version tag of `commit`."""
    names = git("tag", "--points-at", commit, "--list", "v[0-9]*").split()
    return {f"tag {name}": name.removeprefix("v") for name in names}


def agreed_version(stated: dict[str, str]) -> str:
    """Return the version that all places state.

    Raises:
        ValueError: two places differ.
    """
    if len(set(stated.values())) > 1:
        lines = "\n".join(f"  {place}: {version}" for place, version in stated.items())
        raise ValueError(f"the versions differ:\n{lines}\nset all of them to the version to release")
    return next(iter(stated.values()))


def notes_of(version: str, changelog: str) -> str:
    """Return the section of a version in the changelog, in Markdown.

    Raises:
        ValueError: the changelog has no section of that version.
    """
    heading = rf"(?ms)^## \[{re.escape(version)}\].*?(?=^## |\Z)"
    section = re.search(heading, changelog)
    if section is None:
        raise ValueError(f"CHANGELOG.md has no section `## [{version}]`; write what the release changes there")
    return section.group().rstrip() + "\n"


def clean_commit() -> str:
    """Return the commit of the working tree.

    Raises:
        ValueError: the tree is not that of a commit.
    """
    if changed := git("status", "--porcelain"):
        raise ValueError(
            f"a release is made from a commit, and the working tree has changes:\n{changed}\ncommit or remove them"
        )
    return git("rev-parse", "HEAD")


def git(*arguments: str) -> str:
    """Return what a git command prints about this repository."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def with_digests(values: str, images: dict[str, str]) -> str:
    """Return the values of the chart with images named by digest, as far as they are known.

    `agentImage` stays empty: the agent is copied from the operator's image, and the image `agent` has no Python.

    Raises:
        ValueError: a digest is none, or the file has no place for it.
    """
    for name, digest in images.items():
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise ValueError(f"IMAGES: {name}={digest} is not a digest; write {name}=sha256:... with 64 hex digits")
    places = {
        "operator": r'(?m)^(  digest: )""',
        "trainer": r'(?m)^(trainerImage: )""',
    }
    for name, digest in images.items():
        if name not in places:
            continue
        value = digest if name == "operator" else f"{REGISTRY}/{name}@{digest}"
        values, count = re.subn(places[name], rf'\g<1>"{value}"', values)
        if count != 1:
            raise ValueError(f"values.yaml has {count} places for the digest of {name}; one is expected")
    return values


def with_digests_of_plain(text: str, version: str, images: dict[str, str]) -> str:
    """Return the plain manifests with images named by digest, as far as they are known."""
    for name, digest in images.items():
        text = text.replace(f"{REGISTRY}/{name}:{version}", f"{REGISTRY}/{name}@{digest}")
    return text


def statement(digests: dict[str, str], images: dict[str, str], commit: str) -> dict[str, Any]:
    """Return an in-toto statement with SLSA provenance of all artefacts."""
    subjects = [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()]
    subjects += [
        {"name": f"{REGISTRY}/{name}", "digest": {"sha256": digest.removeprefix("sha256:")}}
        for name, digest in images.items()
    ]
    locks = [ROOT / "requirements.lock", *sorted((ROOT / "images").glob("*.lock"))]
    materials = [
        {"uri": str(path.relative_to(ROOT)), "digest": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}}
        for path in locks
    ]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://torchyard.dev/make-release/v1",
                "externalParameters": {"target": "release", "images": images},
                "resolvedDependencies": [{"uri": "git+torchyard", "digest": {"gitCommit": commit}}, *materials],
            },
            "runDetails": {"builder": {"id": os.environ.get("TORCHYARD_BUILDER", "local")}},
        },
    }


def chosen(name: str, default: Sequence[str]) -> list[str]:
    """Return the words of a variable of make, which commas separate; the word `none` alone means no words."""
    text = os.environ.get(name) or ",".join(default)
    return [] if text == "none" else text.split(",")


def chosen_targets() -> list[str]:
    """Return the images to build.

    Raises:
        ValueError: one is no image of ours.
    """
    targets = chosen("TARGETS", TARGETS)
    if unknown := sorted(set(targets) - {*TARGETS}):
        raise ValueError(f"TARGETS: {unknown[0]} is no image; choose from {', '.join(TARGETS)}, or none")
    return targets


def given_images(text: str) -> dict[str, str]:
    """Return the digests of `operator=sha256:...,trainer=sha256:...`.

    Raises:
        ValueError: a part is no such pair.
    """
    pairs = [each.partition("=") for each in text.split(",") if each]
    for name, _, digest in pairs:
        if name not in TARGETS or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise ValueError(
                f"IMAGES: {name}={digest} names no image by digest; write operator=sha256:... (64 hex digits)"
            )
    return {name: digest for name, _, digest in pairs}


if __name__ == "__main__":
    try:
        images = given_images(os.environ.get("IMAGES", ""))
        main(ROOT / "dist", images, chosen_targets(), chosen("PLATFORMS", ["linux/amd64"]))
    except ValueError as error:
        sys.exit(f"release: {error}")
