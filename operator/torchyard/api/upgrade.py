"""Statuses that an earlier version of the operator wrote, with the facts that it left to the reason.

The planner reads facts, never `status.reason`, which is for people. Earlier versions recorded some facts nowhere else:
an operator that takes over their jobs must not restart a job or recreate a released gang at once.
"""

from msgspec.structs import replace

from torchyard.api.exit_codes import exit_code_of
from torchyard.api.reasons import Kind, Reason
from torchyard.api.states import State
from torchyard.api.status import TrainingJobStatus


def upgraded(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with each missing fact derived from its reason; the same object if none is missing."""
    reason, meet = Reason.of(status.reason), status.rendezvous
    if reason is None:
        return status
    released = reason is Reason.GANG_INCOMPLETE or (reason is Reason.CLUSTER_TOO_SMALL and meet.releases > 0)
    if released and not meet.released:
        meet = replace(meet, released=True)
    if reason is Reason.AGENT_SILENT and not meet.silent:
        meet = replace(meet, silent=True)
    if status.state is State.RECOVERING and reason.kind is Kind.WAITING and not meet.delayed:
        meet = replace(meet, delayed=True)
    if meet is not status.rendezvous:
        status = replace(status, rendezvous=meet)
    if reason in {Reason.TRAINING, Reason.STANDING_STILL} and status.progress.stalled is None:
        status = replace(status, progress=replace(status.progress, stalled=reason is Reason.STANDING_STILL))
    if status.state is State.FAILED and status.exit_code is None:
        status = replace(status, exit_code=exit_code_of(reason))
    return status
