"""Names for what an operator and agents ask, and for what an operator hears, the same in every run of the same life.

`create pod job-0-1`, `status Running/Training`, `event RoundOpened`, `read pods`, `lease renew`, `label on`, `review`,
`sync 0-1 running round 1`, `pod MODIFIED job-0-1 Running`: a second one of the same name has `#2` behind it.
"""

import json
import re
from collections import Counter
from typing import Any

from tests.support.cluster.fault_proxy import Request

from torchyard.kubernetes.election import LABEL

JOB = "job"  # in the place of a job's own name


def call(request: Request, job: str) -> str:
    """Name of a call to the API server; empty: it is a watch, or a write about something else than this job."""
    if "/leases" in request.path:
        return _lease(request)
    if request.path.endswith("/tokenreviews"):
        return "review"
    if request.verb == "GET":
        return "" if request.watches else _read(request, job)
    return _label(request) or _write(request, job)


def kind(name: str) -> str:
    """Which kind of call this is: label, lease, read, review, sync or write."""
    first = name.partition(" ")[0]
    return first if first in {"label", "lease", "read", "review", "sync"} else "write"


def base(name: str) -> str:
    """The name without its number."""
    return name.partition(" #")[0]


def sync(says: dict[str, Any], pod: str, job: str) -> str:
    """Name of what an agent says."""
    end = f" exit {says['exit']['code']}" if says["exit"] is not None else ""
    return f"sync {pod.removeprefix(f'{job}-')} {says['state']} round {says['round']}{end}"


def _lease(request: Request) -> str:
    match request.verb:
        case "GET":
            return "lease get"
        case "POST":
            return "lease create"
    spec = json.loads(request.body)["spec"]
    if not spec.get("holderIdentity"):
        return "lease release"
    return "lease claim" if spec["acquireTime"] == spec["renewTime"] else "lease renew"


def _label(request: Request) -> str:
    """Of the pods of operators, by which agents find the one that leads; empty: it is something else."""
    if request.verb != "PATCH" or LABEL.encode() not in request.body:
        return ""
    return "label on" if json.loads(request.body)["metadata"]["labels"][LABEL] else "label off"


def _read(request: Request, job: str) -> str:
    """What is read, and how: all of it, its metadata alone, what is of one job, or a further page."""
    what = anonymous(re.sub(r"^/(api|apis/[^/]+)/[^/]+/(namespaces/[^/]+/)?", "", request.path), job)
    ways = {
        " metadata": "PartialObjectMetadataList" in request.headers.get("Accept", ""),
        " of the job": "job-uid%3D" in request.query,
        " on": "continue=" in request.query,
    }
    return f"read {re.sub(r'^nodes/.*', 'a node', what)}" + "".join(way for way, is_so in ways.items() if is_so)


def _write(request: Request, job: str) -> str:
    last = request.path.rstrip("/").rsplit("/", 1)[-1]
    mentioned = re.compile(rf"(?<![\w-]){re.escape(job)}(?![\w])")
    if not request.writes or not (mentioned.search(request.path) or mentioned.search(request.body.decode())):
        return ""
    body: dict[str, Any] = json.loads(request.body) if request.body else {}
    match request.verb, last:
        case "PUT", "status":
            status = body["status"]
            return f"status {status.get('state')}/{status.get('reason')}"
        case "POST", "events":
            return f"event {body['reason']}"
        case "POST", kind:
            return f"create {kind.removesuffix('s')} {anonymous(body['metadata']['name'], job)}"
        case "DELETE", name:
            return f"delete {anonymous(name, job)}"
    *_, plural, name = request.path.removesuffix("/status").split("/")
    part = " status" if request.path.endswith("/status") else ""
    return f"{request.verb.lower()} {plural.removesuffix('s')} {anonymous(name, job)}{part}"


def news(event: dict[str, Any], job: str) -> str:
    """Name of an event of a watch that is about this job; empty: it is not."""
    document = event["object"]
    name, status = document.get("metadata", {}).get("name", ""), document.get("status", {})
    if document.get("kind") == "TrainingJob" and name == job:
        edited = document["metadata"].get("generation", 1)
        return f"job {event['type']} g{edited} {status.get('state', 'new')}/{status.get('reason', '')}"
    if document.get("kind") == "Pod" and name.startswith(f"{job}-"):
        going = " going" if document["metadata"].get("deletionTimestamp") else ""
        return f"pod {event['type']} {anonymous(name, job)} {status.get('phase', '')}{_placed(document)}{going}"
    return ""


def _placed(pod: dict[str, Any]) -> str:
    return " placed" if pod["status"].get("phase") == "Pending" and pod["spec"].get("nodeName") else ""


def anonymous(text: str, job: str) -> str:
    """The text, with the job's name taken out, and a part of its uid in names of objects of schedulers."""
    text = re.sub(rf"(?<!\w){re.escape(job)}-[0-9a-f]{{8}}(?!\w)", f"{JOB}-uid", text)
    return re.sub(rf"(?<!\w){re.escape(job)}(?!\w)", JOB, text)


class Numbered:
    """Numbers names that occur again."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def __call__(self, name: str) -> str:
        self._seen[name] += 1
        return name if self._seen[name] == 1 else f"{name} #{self._seen[name]}"
