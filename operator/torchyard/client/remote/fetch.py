"""Fetch a job's checkpoint folder as a tar stream from a pod that sees it, or from all pods if each has its own."""

import asyncio
import contextlib
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec

from torchyard.api.launch import checkpoint_claim
from torchyard.api.profiles.effective import as_pinned
from torchyard.api.resource import TrainingJob
from torchyard.client.artifacts import Allowance, Artifact, TooLargeError, remove
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.remote import jobs
from torchyard.client.remote.pod_exec import python
from torchyard.client.remote.session import Remote
from torchyard.client.remote.unpack import unpack
from torchyard.kubernetes.client.errors import Gone, NotFound
from torchyard.kubernetes.client.exec import CannotRun
from torchyard.kubernetes.manifests import names, pod
from torchyard.kubernetes.manifests.names import NON_ROOT
from torchyard.kubernetes.manifests.pod import container_security, pod_security

Document = dict[str, Any]
T = TypeVar("T")
READER_SECONDS = 900
START_SECONDS = 120.0
PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts to run a command in a pod that may have ended."""
HEADERS_BYTES = 256 * 2**20  # of an archive with as many entries as are allowed

# Runs in the pod: links are not followed, and nothing outside the folder is read.
_SEND = """
import os, sys, tarfile
root, wanted = os.path.realpath(sys.argv[1]), sys.argv[2]
source = os.path.realpath(os.path.join(root, wanted))
if not os.path.lexists(os.path.join(root, wanted)) or os.path.commonpath([root, source]) != root:
    names = sorted(name for name in os.listdir(root) if name[0] != ".") if os.path.isdir(root) else []
    sys.exit("torchyard: it has no " + wanted + "; it has " + (", ".join(names) or "nothing yet"))
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
    archive.add(source, arcname="fetched")
"""


# The same that `torchyard.client.artifacts` tells of a local folder.
LISTING = """
import json, os, sys
root = os.path.realpath(sys.argv[1])
found = []
def measure(path):
    size = files = 0
    for folder, _, names in os.walk(path) if os.path.isdir(path) else [(os.path.dirname(path), [], [path])]:
        for name in names:
            try:
                size += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
            files += 1
        if files >= 100000:
            break
    found.append([os.path.relpath(path, root), size, files, os.path.isdir(path)])
def entries(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name[0] != ".")
for path in entries(root) if os.path.isdir(root) else []:
    if os.path.commonpath([root, os.path.realpath(path)]) != root:
        continue
    for each in entries(path) if os.path.basename(path) == "export" and os.path.isdir(path) else [path]:
        measure(each)
print(json.dumps(found[:1000]))
"""
MOST_LISTED = 1024 * 1024


async def contents(remote: Remote, name: str) -> list[Artifact]:
    """Return the artifacts of a job, read through the first pod with access to its checkpoint folder.

    Raises:
        TorchYardError: no pod has access to it.
    """
    return await _once_pods_are_known(lambda: _contents(remote, name))


async def fetch(remote: Remote, name: str, wanted: Path, to: Path, allowance: Allowance) -> None:
    """Bring a file or folder of the job's checkpoint folder to `to`, which must not exist.

    Where pods share no disk, each has its own checkpoint folder, with the profiles of its ranks for instance: what
    all of them have in a folder is brought, and of two files with one name the first pod's.

    Raises:
        TorchYardError: the job has no such thing, no pod can be had that sees it, or it is too large.
    """
    await _once_pods_are_known(lambda: _fetch(remote, name, wanted, to, allowance))


async def _once_pods_are_known(work: Callable[[], Awaitable[T]]) -> T:
    """Do `work`, again for a while if no pod can run commands: the API server learns late which pods have ended."""
    for seconds in PAUSES:
        try:
            return await work()
        except CannotRun:
            await asyncio.sleep(seconds)
    return await work()


async def _contents(remote: Remote, name: str) -> list[Artifact]:
    job = jobs.typed(await jobs.get(remote, name))
    async with _readers(remote, job) as pods:
        found: dict[str, Artifact] = {}
        for pod in pods:
            answer = b""
            async for part in python(remote, pod, LISTING, f"{names.CHECKPOINTS}/{name}"):
                answer += part
                if len(answer) > MOST_LISTED:
                    raise TorchYardError(f"the listing of {pod} does not end", "fetch a path by its name", FAILED)
            try:
                listed = msgspec.json.decode(answer, type=list[tuple[str, int, int, bool]])
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise TorchYardError(
                    f"the listing of {pod} cannot be read", "fetch a path by its name", FAILED
                ) from error
            for path, size, files, is_folder in listed:
                found.setdefault(path, Artifact(path, size, files, is_folder))
        return sorted(found.values())


async def _fetch(remote: Remote, name: str, wanted: Path, to: Path, allowance: Allowance) -> None:
    job = jobs.typed(await jobs.get(remote, name))
    faults: list[TorchYardError | CannotRun] = []
    part = to.with_name(f"{to.name}.part")
    async with _readers(remote, job) as pods:
        for pod in pods:
            try:
                is_folder = await _bring(remote, pod, f"{names.CHECKPOINTS}/{name}", wanted, part, allowance)
            except TooLargeError:
                raise
            except (TorchYardError, CannotRun) as fault:
                remove(part)
                faults.append(fault)
                continue
            await asyncio.to_thread(merge, part, to)
            if not is_folder:
                break
    if len(faults) == len(pods):
        raise next((fault for fault in faults if isinstance(fault, CannotRun)), faults[0])


async def _bring(  # noqa: PLR0917 -- of one place and another
    remote: Remote, pod: str, root: str, wanted: Path, to: Path, allowance: Allowance
) -> bool:
    """Return whether it is a folder."""
    archive = to.with_name(f"{to.name}.tar")
    room = Allowance(allowance.bytes + HEADERS_BYTES, allowance.shown)
    try:
        with archive.open("xb") as file:
            async for part in python(remote, pod, _SEND, root, PurePosixPath(wanted).as_posix()):
                room.take(len(part))
                file.write(part)
        return await asyncio.to_thread(unpack, archive, to, allowance)
    finally:
        archive.unlink(missing_ok=True)


def merge(part: Path, to: Path) -> None:
    """Move a file or folder to where it is not yet; of folders that are on both sides, what is in them."""
    if not to.exists():
        part.rename(to)
        return
    if part.is_dir() and to.is_dir():
        for each in part.iterdir():
            merge(each, to / each.name)
    if part.is_dir() and not part.is_symlink():
        shutil.rmtree(part)
    else:
        part.unlink()


@contextlib.asynccontextmanager
async def _readers(remote: Remote, job: TrainingJob) -> AsyncIterator[list[str]]:
    """Running pods of the job, one of them if all see its claim, else one of our own that is taken away again."""
    pods = await jobs.pods(remote, job)
    running = [pod.name for pod in pods if pod.phase == "Running" and not pod.deleting]
    claim = checkpoint_claim(job.spec)
    if running:
        yield running if claim is None else running[:1]
        return
    if claim is None:
        raise TorchYardError(
            f"no pod of {job.metadata.name!r} runs, and its files were deleted with them",
            "set a claim in checkpoint.volume, or fetch while the job runs",
            FAILED,
        )
    name = f"torchyard-fetch-{secrets.token_hex(4)}"
    path = f"/api/v1/namespaces/{remote.namespace}/pods"
    template = await _template(remote, job, [pod.name for pod in pods])
    await remote.api.request("POST", path, body=reader(name, claim, template))
    try:
        await _started(remote, f"{path}/{name}")
        yield [name]
    finally:
        with contextlib.suppress(NotFound, Gone):  # another client deleted it
            await remote.api.request("DELETE", f"{path}/{name}", body={"gracePeriodSeconds": 0})


async def _template(remote: Remote, job: TrainingJob, pods: list[str]) -> Document:
    """Spec of a pod that sees the claim with the user and the image its files were written with."""
    for name in pods:
        with contextlib.suppress(NotFound):
            answer = await remote.api.request("GET", f"/api/v1/namespaces/{remote.namespace}/pods/{name}")
            found: Document = msgspec.json.decode(answer)["spec"]
            return found
    spec = as_pinned(job).spec
    if spec.image is None:  # the operator's default, which only the operator knows
        raise TorchYardError(
            f"no pod of {job.metadata.name!r} is left to see which image its files were written with",
            f"resume it, or read {job.metadata.name}/ in a pod of your own that mounts the claim"
            f" {checkpoint_claim(spec)!r}; a job that names its `image` can be fetched from at any time",
            FAILED,
        )
    return {
        "securityContext": pod_security(spec, NON_ROOT),
        "imagePullSecrets": [{"name": each} for each in spec.image_pull_secrets],
        "nodeSelector": dict(spec.scheduling.node_selector),
        "tolerations": pod.asked(spec),
        "containers": [{"name": names.TRAINER, "image": spec.image}],
    }


def reader(name: str, claim: str, template: Mapping[str, Any]) -> Document:
    """Return a pod that does nothing but see a claim, read-only, as the pods of `template` saw it."""
    trainer = next(each for each in template["containers"] if each["name"] == names.TRAINER)
    kept = ("securityContext", "imagePullSecrets", "nodeSelector", "tolerations")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "torchyard-fetch"}},
        "spec": {
            **{field: template[field] for field in kept if template.get(field)},
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": READER_SECONDS,
            "containers": [
                {
                    "name": names.TRAINER,
                    "image": trainer["image"],
                    "imagePullPolicy": trainer.get("imagePullPolicy", "IfNotPresent"),
                    "command": ["python3", "-c", f"import time; time.sleep({READER_SECONDS})"],
                    "resources": {
                        "requests": {"cpu": "100m", "memory": "64Mi"},
                        "limits": {"cpu": "1", "memory": "256Mi"},
                    },
                    "securityContext": container_security(),
                    "volumeMounts": [{"name": "claim", "mountPath": names.CHECKPOINTS, "readOnly": True}],
                }
            ],
            "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}],
        },
    }


async def _started(remote: Remote, path: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        status: Document = msgspec.json.decode(await remote.api.request("GET", path)).get("status", {})
        if status.get("phase") == "Running":
            return
        if status.get("phase") in {"Succeeded", "Failed"} or time.monotonic() > deadline:
            states = [each.get("state", {}) for each in status.get("containerStatuses") or ()]
            why = next((state["waiting"].get("reason", "") for state in states if "waiting" in state), "")
            why = why or next((each["message"] for each in status.get("conditions") or () if each.get("message")), "")
            raise TorchYardError(
                f"the pod that reads the claim does not start: {why or status.get('phase')}", "", FAILED
            )
        await asyncio.sleep(0.5)
