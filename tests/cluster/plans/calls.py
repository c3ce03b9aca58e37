"""Names for what an operator does and hears, the same in every run of the same life of a job.

`create pod job-0-1`, `status Running/Training`, `event RoundOpened`, `pod MODIFIED job-0-1 Running`: a second one of
the same name has `#2` behind it.
"""

import json
import re
from collections import Counter
from typing import Any

from fault_proxy import Request

JOB = "job"  # in the place of a job's own name


def write(request: Request, job: str) -> str:
    """Name of a call that changes something about this job; empty: it does not."""
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
    return f"{request.verb} {anonymous(request.path, job)}"


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
    """The text, with the job's name taken out."""
    return re.sub(rf"(?<!\w){re.escape(job)}(?!\w)", JOB, text)


class Numbered:
    """Tells names that come again apart."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def __call__(self, name: str) -> str:
        self._seen[name] += 1
        return name if self._seen[name] == 1 else f"{name} #{self._seen[name]}"
