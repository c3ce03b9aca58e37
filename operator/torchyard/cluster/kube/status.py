"""The body of a status write: a JSON merge patch with the differences (docs/decisions/0007-status-write.md)."""

from typing import Any

from torchyard.api.codec import status_document
from torchyard.api.resource import TrainingJob
from torchyard.api.status import TrainingJobStatus

Document = dict[str, Any]


def patch(job: TrainingJob, status: TrainingJobStatus) -> Document:
    """What turns the status of `job` into `status`, provided that it is still the version we read."""
    meta = job.metadata
    return {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": difference(status_document(job.status), status_document(status)),
    }


def difference(before: Document, after: Document) -> Document:
    """The JSON merge patch (RFC 7386) that turns one document into the other: null removes, lists are replaced."""
    changed: Document = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            if below := difference(old, value):
                changed[name] = below
        elif value != old or name not in before:
            changed[name] = value
    return changed
