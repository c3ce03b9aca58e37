"""Writes the formats of a model below `<checkpoint_dir>/export`: each is written, read back, compared, then published.

    export/<format>/...             files of the format
    export/<format>/manifest.json   origin, measured metrics, size and SHA-256 of every other file, verification

A format replaces its former version atomically.
"""

import hashlib
import json
import platform
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchyard_trainers.core.checkpoints.commits import write_atomically
from torchyard_trainers.core.export import hf
from torchyard_trainers.core.export.bundle import ExportBundle, prepare
from torchyard_trainers.core.export.formats import FORMATS
from torchyard_trainers.core.export.program import Playable
from torchyard_trainers.core.export.verify import ExportError
from torchyard_trainers.core.metrics.curves import say
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.workload import Session, Workload

EXPORTS = "export"
MANIFEST = "manifest.json"


def export(
    fresh: Callable[[], Workload],
    session: Session,
    root: Path,
    formats: Sequence[str],
    facts: Mapping[str, Any],
    *,
    verify: bool,
) -> None:
    """Export the model of a session. Collective; rank 0 writes.

    Args:
        fresh: creates the workload again; its model is unsharded and uncompiled.
        session: its weights are exported.
        root: the checkpoint folder.
        formats: names that passed `check_formats`.
        facts: origin and measured metrics, for the manifest.
        verify: read each format back and compare it.

    Raises:
        ExportError: a format does not match the model; it is not published, earlier ones are.
    """
    session.reporter.phase("export")
    for name in formats:
        if name in hf.FORMATS:
            _publish_hf(fresh(), session, root, name, facts, verify=verify)
    formats = [name for name in formats if name not in hf.FORMATS]
    if not formats:
        return
    whole = session.parallel.on_host(keep=session.world.is_main)

    def write_all() -> None:
        programs = any(FORMATS[name].needs is not None for name in formats)
        page = any(FORMATS[name].needs is Playable for name in formats)
        bundle = prepare(fresh(), whole, facts, programs=programs, page=page)
        for name in formats:
            try:
                _publish(bundle, name, root, session.reporter, verify=verify)
            except ExportError:
                session.reporter.refused(f"{EXPORTS}/{name}")
                raise

    session.world.from_leader(write_all)


def _publish_hf(
    work: Workload, session: Session, root: Path, name: str, facts: Mapping[str, Any], *, verify: bool
) -> None:
    """Write a format of files that ranks write beside each other. Collective."""
    target, world = root / EXPORTS / name, session.world
    scratch = target.with_name(f".{name}.tmp")

    def begin() -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)

    world.from_leader(begin)
    shared = world.shares(root)
    try:
        written = hf.write(work, session, scratch, name, shared=shared, verify=verify)
    except ExportError:
        session.reporter.refused(f"{EXPORTS}/{name}")
        raise

    def publish() -> None:
        digests = written.pop("files")
        digests |= _digests(scratch, known=digests)
        verified = {"tensors": True} if verify else None
        manifest = _manifest(name, facts, written, digests, verified)
        write_atomically(scratch / MANIFEST, json.dumps(manifest, indent=1))
        _replace(target, scratch)
        report_export(root, name, manifest, session.reporter)
        say(f"exported {target}: {sum(each['bytes'] for each in digests.values())} bytes")

    world.from_leader(publish)


def _manifest(
    name: str, facts: Mapping[str, Any], written: Mapping[str, Any], digests: Mapping[str, Any], verified: Any
) -> dict[str, Any]:
    return {
        "schema": 1,
        "format": name,
        "time": time.time(),
        **facts,
        **written,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, **written.get("versions", {})},
        "files": digests,
        "verified": verified,
    }


def _publish(bundle: ExportBundle, name: str, root: Path, reporter: Reporter, *, verify: bool) -> None:
    form, began = FORMATS[name], time.monotonic()
    target = root / EXPORTS / name
    scratch = target.with_name(f".{name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    written = form.write(bundle, scratch)
    verified = form.verify(bundle, scratch, written) if verify else None
    manifest = _manifest(name, bundle.facts, written, _digests(scratch), verified)
    write_atomically(scratch / MANIFEST, json.dumps(manifest, indent=1))
    _replace(target, scratch)
    report_export(root, name, manifest, reporter)
    size = sum(facts["bytes"] for facts in manifest["files"].values())
    gate = "verified" if verify else "not verified"
    say(f"exported {target}: {size} bytes, {gate}, in {time.monotonic() - began:.1f} s")


def report_export(root: Path, name: str, manifest: Mapping[str, Any], reporter: Reporter) -> None:
    """Report a published format: its files, the largest first, and its manifest."""
    target, files = root / EXPORTS / name, manifest["files"]
    verified = {"verified": True} if manifest["verified"] is not None else {}
    # The manifest lists and digests all files; a page has many of them.
    for file in sorted(files, key=lambda file: -files[file]["bytes"]) if name != "web" else ():
        reporter.made({"name": f"{EXPORTS}/{name}/{file}", "uri": str(target / file), **files[file], **verified})
    reporter.artifact(f"{EXPORTS}/{name}/{MANIFEST}", target / MANIFEST, verified=verified.get("verified"))


def _digests(folder: Path, known: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Return size and digest of each file that is not known."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in known):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": digest}
    return found


def _replace(target: Path, new: Path) -> None:
    """Replace a folder by another; between the two renames neither exists."""
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)
