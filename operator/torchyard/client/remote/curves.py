"""Curves of a job on a cluster: from a running pod, of which only new lines are read, else a copy or the status."""

import asyncio
import os
import re
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from torchyard.api.launch import checkpoint_claim
from torchyard.api.resource import TrainingJob
from torchyard.client.curves import Curves, Scale, Source, of_status, stored
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.histories import CHECKED_BYTES
from torchyard.client.metrics import FILE, MAX_BYTES
from torchyard.client.remote import jobs
from torchyard.client.remote.pod_exec import python
from torchyard.client.remote.session import Remote
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.kubernetes.client.exec import CannotRun
from torchyard.kubernetes.manifests import names
from torchyard.local.run import home_folder
from torchyard.reconcile.ports import Unavailable

MOST_DIGITS = 20
COPIES = 50
"""Jobs whose curves are kept on this machine."""
_UID = re.compile(r"[0-9a-z][0-9a-z-]{0,63}")

# Runs in the pod. Writes the offset of what follows: the file may be another one than the copy was made of.
TAIL = """
import os, stat, sys, zlib
path, offset, check, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
out = sys.stdout.buffer
try:
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
except FileNotFoundError:
    sys.exit("torchyard: no metric was logged yet")
if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
    sys.exit("torchyard: " + path + " is not a regular file")
file.seek(max(0, offset - 4096))
before = file.read(min(offset, 4096))
if len(before) < min(offset, 4096) or zlib.crc32(before) != check:
    offset = 0
file.seek(offset)
out.write(b"%d\\n" % offset)
left = most - offset
while left > 0:
    part = file.read(min(left, 1 << 16))
    if not part:
        break
    out.write(part)
    left -= len(part)
"""


async def curves(remote: Remote, name: str, wanted: Iterable[str] | None, scale: Scale) -> Curves:
    """Return the curves of a job from the best source that answers."""
    job = jobs.typed(await jobs.get(remote, name))
    folder = _folder(job)
    source: Source = "files"
    note = ""
    if folder is not None:
        try:
            await _update(remote, job, folder / FILE)
        except (TorchYardError, CannotRun, NotFound, Gone, Rejected, Unavailable) as error:
            note, source = str(getattr(error, "sentence", error)), "copy"
        if (folder / FILE).exists():
            found = await asyncio.to_thread(stored, folder / FILE, wanted, scale, job.status, source=source, note=note)
            if found is not None:
                return found
    return of_status(job.status, wanted, note)


def _folder(job: TrainingJob) -> Path | None:
    """Return where the copy of a job's metrics lies, which is the newest copy from now on; the oldest are deleted."""
    if not _UID.fullmatch(job.metadata.uid):
        return None
    every = home_folder() / "cache" / "curves"
    folder = every / job.metadata.uid
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.touch()
        others = sorted(every.iterdir(), key=lambda each: each.stat().st_mtime)
    except OSError:
        return None
    for each in others[:-COPIES]:
        shutil.rmtree(each, ignore_errors=True)
    return folder


async def _update(remote: Remote, job: TrainingJob, copy: Path) -> None:
    """Append what a pod has beyond the copy.

    Raises:
        TorchYardError: no pod runs, or it has no metrics.
    """
    pods = [pod for pod in await jobs.pods(remote, job) if pod.phase == "Running" and not pod.deleting]
    if checkpoint_claim(job.spec) is None:  # the agent of node rank 0 writes them, into its own folder
        pods = [pod for pod in pods if pod.index == 0]
    if not pods:
        name = job.metadata.name
        fix = f"`torchyard fetch {name} {FILE}{remote.flags}` reads the claim"
        raise TorchYardError("no pod runs" + (f"; {fix}" if checkpoint_claim(job.spec) else ""), code=FAILED)
    offset, check = await asyncio.to_thread(_end, copy)
    path = f"{names.CHECKPOINTS}/{job.metadata.name}/{FILE}"
    head, begins = b"", True
    with _opened(copy) as file:
        async for part in python(remote, pods[-1].name, TAIL, path, str(offset), str(check), str(MAX_BYTES)):
            data = part
            if begins:
                head += part
                start, line, data = head.partition(b"\n")
                if not line and len(head) < MOST_DIGITS:
                    continue
                begins = False
                file.seek(_offset(start, offset))
                file.truncate()
            file.write(data)
            if file.tell() > MAX_BYTES:
                raise TorchYardError(f"the metrics have more than {MAX_BYTES // 2**20} MiB", code=FAILED)


def _opened(copy: Path) -> BinaryIO:
    return os.fdopen(os.open(copy, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")


def _offset(text: bytes, most: int) -> int:
    if not text.isdigit() or len(text) > MOST_DIGITS or int(text) not in {0, most}:
        raise TorchYardError("a pod answers something else than metrics", code=FAILED)
    return int(text)


def _end(copy: Path) -> tuple[int, int]:
    """Return the length of a copy, and the CRC-32 of its last bytes."""
    try:
        with copy.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - CHECKED_BYTES))
            return size, zlib.crc32(file.read())
    except OSError:
        return 0, zlib.crc32(b"")
