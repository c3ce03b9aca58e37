"""The alerts and the dashboard of the chart, evaluated by Prometheus over series as the operator writes them."""

import json
import re

import pytest
from msgspec.structs import replace
from tests.kubernetes.test_job_metrics import TRAINING, job
from tests.support.charts import CHART, needs_helm, one, rendered
from tests.support.prometheus import (
    START,
    Operator,
    asked,
    check_alerts,
    needs_prometheus,
    promtool,
    scraped,
    server,
)  # fmt: skip
from tests.support.waiting import until

from torchyard.api.status import Goodput, NonFiniteMetric, Reason, Restarts, State
from torchyard.api.values import Time

pytestmark = [needs_helm, needs_prometheus]
STATUS = "/apis/torchyard.dev/v1alpha1/namespaces/team/trainingjobs/cvrp/status"
VALUES = {"metrics": {"prometheusRule": {"enabled": True}}, "notifications": {"secret": "hook"}}
SECONDS = 60
QUIET = TRAINING.progress


def rules():
    return one(rendered(VALUES), "PrometheusRule")["spec"]


def a(**status):
    """A change of the only job."""

    def change(operator, _minute):
        operator.jobs = [job("a", replace(TRAINING, **status))]

    return change


def no_leader(operator, _minute):
    operator.leads = False


def fails(operator, _minute):
    operator.metrics.looked("failed", 0.1)


def behind(operator, _minute):
    operator.depth = 2000


def refused(operator, _minute):
    operator.metrics.requested("PUT", STATUS, 403)


def unanswered(operator, _minute):
    for _ in range(100):
        operator.metrics.requested("GET", "/api/v1/pods", 0)


def dropped(operator, minute):
    operator.dropped = float(minute)


def failed(operator, _minute):
    over = replace(TRAINING, state=State.FAILED, reason=Reason.WORKER_FAILED, completion_time=Time.of(START))
    operator.jobs = [job("a", over)]


def restarts(operator, minute):
    operator.jobs = [job("a", replace(TRAINING, restarts=Restarts(total=minute // 5)))]


def one_too_many(operator, _minute):
    operator.limit, operator.jobs = 1, [job("a", replace(TRAINING)), job("b", replace(TRAINING))]


OF_A = {"job_name": "a"}
NOT_FINITE = {"loss": NonFiniteMetric(value="NaN", step=3)}
# Alert, what happens, a minute at which it does not fire yet, one at which it does, its labels.
ALERTS = [
    ("TorchYardWithoutLeader", no_leader, 1, 4, {}),
    ("TorchYardReconcileFails", fails, 10, 30, {}),
    ("TorchYardFallsBehind", behind, None, 20, {}),
    ("TorchYardStatusRefused", refused, 5, 20, {}),
    ("TorchYardWithoutApiServer", unanswered, 5, 20, {}),
    ("TorchYardNotificationsDropped", dropped, 0, 10, {}),
    ("TorchYardJobFailed", failed, None, 2, {**OF_A, "reason": "WorkerFailed"}),
    ("TorchYardJobStalled", a(progress=replace(QUIET, stalled=True)), 5, 15, OF_A),
    ("TorchYardJobRestartsOften", restarts, 5, 40, OF_A),
    ("TorchYardJobMetricNotFinite", a(non_finite_metrics=NOT_FINITE), 2, 10, OF_A),
    ("TorchYardJobWaits", a(state=State.PENDING), 20, 40, OF_A),
    ("TorchYardJobWastesTime", a(goodput=Goodput(percent=30.0)), 100, 140, OF_A),
    ("TorchYardJobsWithoutSeries", one_too_many, 50, 70, {}),
]


def test_each_alert_is_tried_here():
    assert {each["alert"] for group in rules()["groups"] for each in group["rules"]} == {each[0] for each in ALERTS}


def test_promtool_accepts_the_rules(tmp_path):
    (tmp_path / "rules.yaml").write_text(json.dumps(rules()))
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("tried", ALERTS, ids=[each[0] for each in ALERTS])
async def test_an_alert_fires_in_its_time_and_no_other_does(tried, tmp_path):
    name, change, before, at, labels = tried
    series = await scraped(Operator(), change, at + 2, SECONDS)
    quiet = {before: []} if before is not None else {}
    check_alerts(rules(), series, quiet | {at: [{"alertname": name, **labels}]}, tmp_path)


async def test_nothing_fires_while_jobs_train(tmp_path):
    def trains(operator, _minute):
        operator.jobs = [job("a")]
        operator.metrics.looked("done", 0.1)
        operator.metrics.requested("PUT", STATUS, 200)

    series = await scraped(Operator(), trains, 200, SECONDS)
    check_alerts(rules(), series, {minute: [] for minute in (5, 60, 199)}, tmp_path)


async def test_the_alert_of_a_failed_job_ends_when_its_series_do(tmp_path):
    series = await scraped(Operator(), failed, 20, SECONDS)
    alert = {"alertname": "TorchYardJobFailed", **OF_A, "reason": "WorkerFailed"}
    check_alerts(rules(), series, {3: [alert], 15: []}, tmp_path)


def queries():
    """Each query of the dashboard, its variables replaced as Grafana does for `All`."""
    text = (CHART / "files/dashboard.json").read_text()
    board = json.loads(text)
    panels = [inner for panel in board["panels"] for inner in (panel, *panel.get("panels", ()))]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    listed = [each["definition"] for each in board["templating"]["list"] if "definition" in each]
    expressions += [re.fullmatch(r"label_values\((.*), \w+\)", each)[1] for each in listed]
    for name, value in (("namespace", ".*"), ("job", ".*"), ("__rate_interval", "2m")):
        expressions = [each.replace(f"${name}", value) for each in expressions]
    return sorted(set(expressions))


async def test_each_query_of_the_dashboard_finds_something(tmp_path):
    def trains(operator, number):
        operator.jobs = [job("a", replace(TRAINING, restarts=Restarts(total=number)))]
        operator.metrics.looked("done", 0.1)
        operator.metrics.requested("PUT", STATUS, 200)

    series = await scraped(Operator(), trains, 20, 30)
    assert len(queries()) > 25
    with server(series, 30, tmp_path) as url:
        until(lambda: asked(url, "torchyard_leader", START + 500))
        results = {query: asked(url, query, START + 500) for query in queries()}
    assert [query for query, result in results.items() if not result] == []
    values = {query: {sample["value"][1] for sample in result} for query, result in results.items()}
    assert [query for query, found in values.items() if found & {"NaN", "+Inf"}] == []
