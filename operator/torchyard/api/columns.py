"""What `kubectl get` and `torchyard ps` show of a job: figures with their units, as short as a column is.

A printer column of the API server shows a field as it is; so the status holds what is to be shown, beside the figures.
"""

from msgspec.structs import replace

from torchyard.api.formatting import figure, span
from torchyard.api.states import State
from torchyard.api.status import Columns, TrainingJobStatus

# What built-in workloads are trained for, the first that a job reports.
RESULTS = ("successRate", "evalReturn", "evalLength", "exactMatch", "cost")


def columns(status: TrainingJobStatus) -> Columns:
    """The columns of a status; what is not known is empty."""
    progress, rate = status.progress, status.throughput.steps_per_second
    loss, reward = status.metrics.get("loss"), status.metrics.get("reward")
    running = status.state == State.RUNNING
    return Columns(
        # Rounded down: what is not done never reads 100%.
        progress=f"{int(progress.percent)}%" if progress.percent is not None else "",
        step=f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step or ""),
        loss=figure(loss) if loss is not None else "",
        reward=figure(reward) if reward is not None else "",
        rate=f"{figure(rate)}/s" if rate is not None else "",
        goodput=f"{int(status.goodput.percent)}%" if status.goodput is not None else "",
        eta=span(progress.eta_seconds) if running and progress.eta_seconds is not None else "",
        result=_result(status),
    )


def _result(status: TrainingJobStatus) -> str:
    """Return what a built-in workload is trained for, as it last evaluated it: the first such metric of the job."""
    name = next((name for name in RESULTS if name in status.metrics), None)
    return f"{name} {figure(status.metrics[name])}" if name is not None else ""


def with_columns(status: TrainingJobStatus) -> TrainingJobStatus:
    """The status with what a table shows of it."""
    return replace(status, columns=columns(status))
