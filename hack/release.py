"""Prepare a release in `dist/`: `make release`, after images are pushed `make release IMAGES=operator=sha256:...,...`.

It holds the wheel, the chart, plain manifests, bills of materials, their checksums, and a provenance statement that
says from which commit they were made. Signing needs an identity or a key: the commands are printed at the end.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import manifests
import sbom

ROOT = Path(__file__).resolve().parent.parent
REGISTRY = "ghcr.io/torchyard"
SUMS, PROVENANCE = "SHA256SUMS", "provenance.intoto.json"


def main(folder: Path, images: dict[str, str]) -> None:
    """Write everything that a release publishes beside its images."""
    commit = clean_commit()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wheel = [
        sys.executable,
        "-m",
        "uv",
        "build",
        "--quiet",
        "--wheel",
        "--no-build-isolation",
        "--out-dir",
        str(folder),
    ]
    subprocess.run(wheel, cwd=ROOT, check=True)
    (folder / ".gitignore").unlink(missing_ok=True)
    manifests.main(folder)
    sbom.main(folder)
    with tempfile.TemporaryDirectory() as scratch:
        chart = Path(scratch) / "torchyard"
        shutil.copytree(ROOT / "charts/torchyard", chart)
        values = chart / "values.yaml"
        values.write_text(with_digests(values.read_text(), images))
        subprocess.run([str(manifests.helm()), "package", str(chart), "--destination", str(folder)], check=True)
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    (folder / PROVENANCE).write_text(json.dumps(statement(digests, images, commit), indent=1) + "\n")
    if missing := {"operator", "trainer"} - images.keys():
        print(f"images without a digest: {', '.join(sorted(missing))}; push them and give IMAGES=NAME=sha256:...")
    print("\nto sign, with an identity of yours:")
    print(f"  cosign sign-blob --yes --bundle {folder}/{SUMS}.sigstore.json {folder}/{SUMS}")
    for name, digest in images.items():
        image = f"{REGISTRY}/{name}@{digest}"
        print(f"  cosign sign --yes {image}")
        print(f"  cosign attest --yes --type cyclonedx --predicate {folder}/torchyard-{name}.cdx.json {image}")
        print(f"  cosign attest --yes --type slsaprovenance1 --predicate {folder}/{PROVENANCE} {image}")


def clean_commit() -> str:
    """Return the commit of the working tree.

    Raises:
        ValueError: the tree is not that of a commit.
    """
    git = ["git", "-C", str(ROOT)]
    if changed := subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout:
        raise ValueError(
            f"a release is made from a commit, and the working tree has changes:\n{changed}commit or remove them"
        )
    return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def with_digests(values: str, images: dict[str, str]) -> str:
    """Return the values of the chart with images named by digest, as far as they are known.

    Raises:
        ValueError: a digest is none, or the file has no place for it.
    """
    for name, digest in images.items():
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise ValueError(f"IMAGES: {name}={digest} is not a digest; write {name}=sha256:... with 64 hex digits")
    places = {
        "operator": r'(?m)^(  digest: )""',
        "trainer": r'(?m)^(trainerImage: )""',
        "agent": r'(?m)^(agentImage: )""',
    }
    for name, digest in images.items():
        if name not in places:
            continue
        value = digest if name == "operator" else f"{REGISTRY}/{name}@{digest}"
        values, count = re.subn(places[name], rf'\g<1>"{value}"', values)
        if count != 1:
            raise ValueError(f"values.yaml has {count} places for the digest of {name}; one is expected")
    return values


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


if __name__ == "__main__":
    given = [each.split("=", 1) for each in os.environ.get("IMAGES", "").split(",") if "=" in each]
    try:
        main(ROOT / "dist", dict(given))
    except ValueError as error:
        sys.exit(f"release: {error}")
