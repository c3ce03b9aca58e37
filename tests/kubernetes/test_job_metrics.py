"""Series of single jobs on /metrics: bounded, from the leader alone, and for as long as a job lives."""

import json
import re

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from tests.support.charts import CHART, needs_helm, one, rendered

from torchyard.api.resource import ObjectMeta, TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.status import (
    CheckpointStatus,
    Goodput,
    Gpus,
    NonFiniteMetric,
    Progress,
    Restarts,
    State,
    Throughput,
    TrainingJobStatus,
)
from torchyard.api.values import Time
from torchyard.app.job_metrics import LAST_SECONDS, SERIES, JobMetrics
from torchyard.app.probes import Metrics

NOW = 10_000.0
TRAINING = TrainingJobStatus(
    state=State.RUNNING,
    progress=Progress(step=7, percent=25.0, eta_seconds=60, last_step_time=Time.of(9_990), stalled=False),
    metrics={"loss": 2.5, "reward": -1.0, "secret_name_of_a_user": 1.0},
    throughput=Throughput(steps_per_second=2.0, samples_per_second=64.0, tokens_per_second=900.0, mfu=0.4),
    goodput=Goodput(percent=90.0),
    gpus=Gpus(count=8, utilization=75.0, memory_used_bytes=1024),
    gpu_seconds=80.0,
    restarts=Restarts(total=3),
    checkpoint=CheckpointStatus(step=5, time=Time.of(9_900), steps_at_risk=2),
)


def job(name, status=TRAINING, created=0.0):
    return TrainingJob(
        metadata=ObjectMeta(name=name, namespace="team", creation_timestamp=Time.of(created)),
        spec=TrainingJobSpec(),
        status=status,
    )


async def figures(*jobs, limit=500, leading=True):
    """The samples of the page by metric, and in each by the name of the job."""
    page = await JobMetrics(jobs, lambda: leading, limit, lambda: NOW).page()
    samples = [sample for family in text_string_to_metric_families(page.decode()) for sample in family.samples]
    found = {}
    for sample in samples:
        found.setdefault(sample.name, {})[sample.labels.get("job_name")] = sample.value
    return found


def at_rest(state, ago):
    return replace(TRAINING, state=state, completion_time=Time.of(NOW - ago))


async def test_a_training_job_has_every_figure():
    page = await figures(job("a"))
    assert {name: value["a"] for name, value in page.items() if "a" in value} == {
        "torchyard_job_info": 1,
        "torchyard_job_progress_ratio": 0.25,
        "torchyard_job_step": 7,
        "torchyard_job_last_step_timestamp_seconds": 9_990,
        "torchyard_job_eta_seconds": 60,
        "torchyard_job_stalled": 0,
        "torchyard_job_loss": 2.5,
        "torchyard_job_reward": -1,
        "torchyard_job_non_finite_metrics": 0,
        "torchyard_job_steps_per_second": 2,
        "torchyard_job_samples_per_second": 64,
        "torchyard_job_tokens_per_second": 900,
        "torchyard_job_mfu_ratio": 0.4,
        "torchyard_job_goodput_ratio": 0.9,
        "torchyard_job_gpus": 8,
        "torchyard_job_gpu_utilization_ratio": 0.75,
        "torchyard_job_gpu_memory_used_bytes": 1024,
        "torchyard_job_gpu_seconds_total": 80,
        "torchyard_job_restarts_total": 3,
        "torchyard_job_nodes_desired": 0,
        "torchyard_job_nodes_ready": 0,
        "torchyard_job_checkpoint_timestamp_seconds": 9_900,
        "torchyard_job_steps_at_risk": 2,
    }


async def test_names_of_users_metrics_make_no_series():
    page = await JobMetrics([job("a")], lambda: True, 5, lambda: NOW).page()
    assert b"secret_name_of_a_user" not in page


async def test_a_loss_that_is_not_a_number_is_one_here_too():
    lost = replace(TRAINING, metrics={}, non_finite_metrics={"loss": NonFiniteMetric(value="NaN", step=3)})
    page = await figures(job("a", lost))
    assert page["torchyard_job_loss"]["a"] != page["torchyard_job_loss"]["a"]
    assert page["torchyard_job_non_finite_metrics"]["a"] == 1


async def test_a_job_that_waits_has_no_rates():
    page = await figures(job("a", replace(TRAINING, state=State.SUSPENDED)))
    assert not {name for name in page if "per_second" in name or "gpu_util" in name or "stalled" in name}
    assert page["torchyard_job_loss"]["a"] == 2.5


async def test_series_end_a_few_minutes_after_the_job():
    ended = [job("new", at_rest(State.FAILED, LAST_SECONDS - 1)), job("old", at_rest(State.FAILED, LAST_SECONDS))]
    page = await figures(*ended)
    assert set(page["torchyard_job_info"]) == {"new"}
    assert page["torchyard_jobs_without_series"][None] == 0


async def test_the_limit_leaves_out_the_least_important_and_counts_them():
    jobs = [
        job("over", at_rest(State.SUCCEEDED, 1)),
        job("waits", replace(TRAINING, state=State.QUEUED)),
        job("young", created=50.0),
        job("old", created=10.0),
    ]
    for limit, names in ((1, {"old"}), (2, {"old", "young"}), (3, {"old", "young", "waits"})):
        page = await figures(*jobs, limit=limit)
        assert set(page["torchyard_job_info"]) == names
        assert page["torchyard_jobs_without_series"][None] == 4 - limit


@pytest.mark.parametrize(("limit", "leading"), [(0, True), (5, False)])
async def test_without_limit_or_leadership_nothing_is_written(limit, leading):
    assert await figures(job("a"), limit=limit, leading=leading) == {}


def known_names():
    """The names of all series that the operator can have."""
    metrics = Metrics(jobs=lambda: {"Running": 1}, depth=lambda: 0, leading=lambda: True)
    metrics.looked("done", 0.1)
    metrics.requested("GET", "/api/v1/pods", 200)
    own = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    counts = {"torchyard_intake_connections", "torchyard_intake_held"}  # of the wired operator
    return own | counts | {name for name, _, _ in SERIES} | {"torchyard_job_info", "torchyard_jobs_without_series"}


def test_the_dashboard_asks_for_series_that_exist():
    text = (CHART / "files/dashboard.json").read_text()
    assert set(re.findall(r"torchyard_\w+", text)) <= known_names()
    panels = json.loads(text)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)


@needs_helm
def test_alerts_of_jobs_ask_for_series_that_exist_and_go_with_them():
    values = {"metrics": {"prometheusRule": {"enabled": True}}}
    operators, jobs = one(rendered(values), "PrometheusRule")["spec"]["groups"]
    text = json.dumps([rule["expr"] for rule in jobs["rules"]])
    assert set(re.findall(r"torchyard_\w+", text)) - {"torchyard_"} <= known_names()
    values["metrics"]["jobSeries"] = 0
    assert one(rendered(values), "PrometheusRule")["spec"]["groups"] == [operators]
