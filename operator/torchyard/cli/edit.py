"""Edits of a run's job file that its controlling process, if there is one, follows."""

import msgspec

from torchyard.api.resource import TrainingJob
from torchyard.cluster.local.folder import RunFolder
from torchyard.cluster.local.run import edit_job


def suspend(folder: RunFolder, *, wanted: bool) -> TrainingJob:
    """Set `spec.suspend`."""

    def change(job: TrainingJob) -> TrainingJob:
        return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, suspend=wanted))

    return edit_job(folder, change)
