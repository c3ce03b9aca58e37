"""What a view on the same machine makes of ranks' newest reports."""

import msgspec

from torchyard.api.resource import TrainingJob
from torchyard.api.status import CheckpointStatus, Progress, State, TrainingJobStatus
from torchyard.client.ranks import Reported, freshen
from torchyard.reconcile.observed import RankReport


def shown(report_step, saved):
    """Step and checkpoint of a view whose status is older than its ranks' reports."""
    status = TrainingJobStatus(
        state=State("Running"), progress=Progress(step=60), checkpoint=CheckpointStatus(step=50, steps_at_risk=10)
    )
    job = msgspec.convert({"metadata": {"name": "job"}, "spec": {"trainer": {"name": "cvrp"}}}, TrainingJob)
    reports = [
        Reported("job-0-0", "local-0", RankReport(rank=0, step=report_step)),
        Reported("job-0-1", "local-1", RankReport(rank=1, step=report_step, checkpoint=saved)),
    ]
    fresh = freshen(msgspec.structs.replace(job, status=status), reports).status
    return fresh.progress.step, fresh.checkpoint.step, fresh.checkpoint.steps_at_risk


def test_steps_at_risk_are_counted_from_the_step_that_is_shown():
    assert shown(225, None) == (225, 50, 175)
    assert shown(225, {"step": 200, "time": 1.8e9}) == (225, 200, 25)
    assert shown(60, {"step": 60}) == (60, 50, 10), "the status is as new as the reports"


def test_the_epoch_is_that_of_the_step_that_is_shown():
    status = TrainingJobStatus(state=State("Running"), progress=Progress(step=60, epoch=2.8))
    job = msgspec.convert({"metadata": {"name": "job"}, "spec": {"trainer": {"name": "cvrp"}}}, TrainingJob)
    reports = [Reported("job-0-0", "local-0", RankReport(rank=0, step=275, epoch=13.7))]
    assert freshen(msgspec.structs.replace(job, status=status), reports).status.progress.epoch == 13.7
