"""The project's images on the cluster: built from the working tree, loaded where they changed."""

import json
import shutil
from pathlib import Path

from cache import HERE, KIND
from cluster import NODES, WORKERS
from load import load
from node_image import base_image, present, stock
from shell import run, say, step

ROOT = HERE.parent.parent
TARGETS = ("operator", "trainer-cpu")
HOST_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
LOADED = KIND / "loaded.json"


def up_to_date() -> None:
    """Build every target and load it into the workers that do not have this very image."""
    base = [] if present(stock()) else ["--build-arg", f"BASE_IMAGE={base_image()}"]
    for target in TARGETS:
        name = f"torchyard/{target}:dev"
        with step(f"building {name}", usual="4 min the first time"):
            _certificates()
            run("docker", "build", "--network", "host", "--target", target, *base, "--tag", name, ROOT)
        ensure_loaded(name)


def ensure_loaded(image: str) -> None:
    """Load an image that Docker has; each digest once per node."""
    digest = run("docker", "image", "inspect", "--format", "{{.Id}}", image).strip()
    known = json.loads(LOADED.read_text()) if LOADED.exists() else {}
    ids = run("docker", "inspect", "--format", "{{.Name}} {{.Id}}", *NODES).split()
    containers = {name.lstrip("/"): identity for name, identity in zip(ids[::2], ids[1::2], strict=True)}
    # A node that was made anew has another container id and nothing loaded.
    known = {identity: known.get(identity, {}) for identity in containers.values()}
    missing = tuple(node for node in WORKERS if known[containers[node]].get(image) != digest)
    if missing:
        with step(f"loading {image}", usual="1-2 min for the trainer's first, else seconds"):
            sent = load(image, missing)
        say(f"{image}: {sent / 1e6:.1f} MB sent to {len(missing)} nodes")
    for node in missing:
        known[containers[node]][image] = digest
    LOADED.write_text(json.dumps(known))


def _certificates() -> None:
    """Pass the certificates that this machine trusts to the build: a network may have its own CA."""
    if HOST_CERTIFICATES.exists():
        (ROOT / "build").mkdir(exist_ok=True)
        shutil.copyfile(HOST_CERTIFICATES, ROOT / "build" / "ca.crt")
