"""Write a software bill of materials (CycloneDX 1.6) for the wheel and for each image: `make sbom`.

Contents are those of the lock files, which are what the images install, by hash; the base of an image is named by its
digest, and its own packages are in the bill that its publisher gives out.
"""

import hashlib
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# By target of the Dockerfile: the stage whose FROM names the base, and the lock files of what is installed.
IMAGES: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "operator": ("base", ("images/operator.lock",)),
    "agent": (None, ()),
    "trainer-cpu": ("base", ("images/trainer.lock",)),
    "trainer": ("cuda", ("images/trainer.lock",)),
}
Component = dict[str, Any]


def main(folder: Path) -> None:
    """Write one file for the wheel and one for each image."""
    folder.mkdir(parents=True, exist_ok=True)
    bills = {"wheel": bill("wheel", None, ("requirements.lock",), kind="library")}
    bills |= {name: bill(name, base, locks) for name, (base, locks) in IMAGES.items()}
    for name, document in bills.items():
        path = folder / f"torchyard-{name}.cdx.json"
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"{path}: {len(document['components'])} components")


def bill(name: str, base: str | None, locks: tuple[str, ...], kind: str = "container") -> dict[str, Any]:
    """Return the bill of one artefact; the same sources give the same bytes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parts = [part for lock in locks for part in pinned((ROOT / lock).read_text())]
    if kind == "library":
        wanted = runtime(project)
        parts = [part for part in parts if part["name"].lower() in wanted]
    if base is not None:
        parts.insert(0, base_image(base))
    subject = {"type": kind, "bom-ref": f"torchyard-{name}", "name": f"torchyard-{name}", "version": project["version"]}
    text = json.dumps(parts, sort_keys=True).encode()
    serial = hashlib.sha256(f"{name} {project['version']}".encode() + text).hexdigest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial[:8]}-{serial[8:12]}-5{serial[13:16]}-8{serial[17:20]}-{serial[20:32]}",
        "version": 1,
        "metadata": {"component": subject | {"licenses": [{"license": {"id": project["license"]}}]}},
        "components": parts,
        "dependencies": [{"ref": f"torchyard-{name}", "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def pinned(lock: str) -> list[Component]:
    """Return the packages of a lock file with the hashes that installation checks."""
    entries = re.split(r"\n(?=\S)", lock.replace("\\\n", " "))
    found = []
    for entry in entries:
        match = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;]+)", entry)
        if match is None:
            continue
        name, version = re.sub(r"[-_.]+", "-", match[1]).lower(), match[2]
        hashes = [{"alg": "SHA-256", "content": each} for each in re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)]
        purl = f"pkg:pypi/{name}@{version}"
        # Each hash is that of one distribution of this version; which one is installed depends on the platform.
        part = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        found.append(part | {"hashes": hashes})
    return found


def base_image(stage: str) -> Component:
    """Return the image that a stage of the Dockerfile begins with."""
    match = re.search(
        rf"^FROM \$\{{BASE_IMAGE:-(\S+?)@sha256:([0-9a-f]{{64}})\}} AS {stage}$",
        (ROOT / "Dockerfile").read_text(),
        re.MULTILINE,
    )
    if match is None:
        raise ValueError(f"Dockerfile: stage {stage} has no base with a digest; pin it by @sha256:...")
    name, _, tag = match[1].rpartition(":")
    purl = f"pkg:oci/{name.rpartition('/')[2]}@sha256%3A{match[2]}?repository_url={name}&tag={tag}"
    return {
        "type": "container",
        "bom-ref": purl,
        "name": name,
        "version": tag,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": match[2]}],
    }


def runtime(project: dict[str, Any]) -> set[str]:
    """Return the names of what the wheel itself asks for, extras for development left out."""
    asked = list(project["dependencies"])
    for extra, names in project["optional-dependencies"].items():
        asked += [] if extra == "dev" else names
    return {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!; ]", each, maxsplit=1)[0]).lower() for each in asked}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
