"""`torchyard ps` of a cluster."""

import time
from typing import Literal

from torchyard.api.formatting import plural
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.output import emit, say
from torchyard.cli.remote import jobs
from torchyard.cli.remote.session import Remote
from torchyard.cli.table import COLUMNS, WIDE_COLUMNS, lines, row


async def show(remote: Remote, *, everywhere: bool, output: Literal["json", "yaml", "wide"] | None) -> int:
    """Print the jobs of a namespace, or of all, newest first."""
    documents = await jobs.get_all(remote, everywhere=everywhere)
    documents.sort(key=lambda document: document["metadata"].get("creationTimestamp", ""), reverse=True)
    if output in {"json", "yaml"}:
        emit(documents, "json" if output == "json" else "yaml")
        return SUCCEEDED
    where = f"all namespaces of {remote.context}" if everywhere else remote.where
    say(f"{where}: {plural(len(documents), 'job') if documents else 'no jobs'}")
    now, wide = time.time(), output == "wide"
    rows = []
    for document in documents:
        job = jobs.typed(document)
        rows.append([*([job.metadata.namespace] if everywhere else []), *row(job, True, now, wide)])
    columns = WIDE_COLUMNS if wide else COLUMNS
    if rows:
        for line in lines(("NAMESPACE", *columns) if everywhere else columns, rows):
            print(line)
    return SUCCEEDED
