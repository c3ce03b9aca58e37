"""What `kubectl get` shows of a job: figures that need no explanation."""

import pytest

from torchyard.api.resource import columns, with_columns
from torchyard.api.status import Columns, Goodput, Progress, State, Throughput, TrainingJobStatus

TRAINS = TrainingJobStatus(
    state=State("Running"),
    progress=Progress(step=272, total_steps=500, percent=54.4, eta_seconds=7019),
    metrics={"loss": -0.191806},
    throughput=Throughput(steps_per_second=26.6276),
    goodput=Goodput(percent=35.07),
)


def test_figures_are_short_and_carry_their_units():
    assert columns(TRAINS) == Columns(
        progress="54%", step="272/500", loss="-0.192", rate="26.63/s", goodput="35%", eta="1h56m"
    )


def test_a_job_of_reinforcement_learning_shows_its_reward():
    assert columns(TrainingJobStatus(metrics={"reward": 0.75})).reward == "0.750"


def test_a_job_of_which_nothing_is_known_shows_nothing():
    assert columns(TrainingJobStatus(state=State("Pending"))) == Columns()


def test_a_job_that_counts_no_total_shows_its_step():
    status = TrainingJobStatus(state=State("Running"), progress=Progress(step=12))
    assert columns(status) == Columns(step="12")


@pytest.mark.parametrize("state", ["Recovering", "Suspended", "Succeeded", "Failed"])
def test_time_is_left_only_while_steps_are_made(state):
    status = with_columns(TRAINS)
    assert status.columns.eta
    ended = TrainingJobStatus(state=state, progress=status.progress, columns=status.columns)
    assert with_columns(ended).columns == Columns(progress="54%", step="272/500")


def test_what_is_not_done_never_reads_as_done():
    status = TrainingJobStatus(progress=Progress(step=4999, total_steps=5000, percent=99.98))
    assert columns(status).progress == "99%"


def test_a_built_in_workload_shows_what_it_is_trained_for():
    metrics = {"loss": 0.1, "episodeReturn": 1.5, "successRate": 0.95703}
    assert columns(TrainingJobStatus(metrics=metrics)).result == "successRate 0.957"
    assert columns(TrainingJobStatus(metrics={"cost": 4.8123, "gapPercent": 2.0})).result == "cost 4.812"


def test_a_forged_share_is_one_between_0_and_100():
    status = TrainingJobStatus(progress=Progress(percent=1e300), goodput=Goodput(percent=-1e300))
    assert (columns(status).progress, columns(status).goodput) == ("100%", "0%")
