"""Alerts ask for series that the operator has: one that names another never fires."""

import re

import pytest
from tests.support.charts import NAMESPACE, needs_helm, one, rendered

from torchyard.app.probes import Metrics

pytestmark = needs_helm

SELECTOR = re.compile(r"(torchyard_\w+)\{(.*?)\}")
MATCHER = re.compile(r'(\w+)(=~?)"([^"]*)"')
SCRAPED = {"namespace": NAMESPACE, "service": "torchyard-metrics"}
STATUS = "/apis/torchyard.dev/v1alpha1/namespaces/team/trainingjobs/cvrp/status"


@pytest.fixture
def metrics():
    return Metrics(jobs=dict, depth=lambda: 0, leading=lambda: True)


def alerts():
    rule = one(rendered({"metrics": {"prometheusRule": {"enabled": True}}}), "PrometheusRule")
    return {each["alert"]: each["expr"] for each in rule["spec"]["groups"][0]["rules"]}


def matched(expression, metrics):
    """The samples that an expression selects, as Prometheus does: a matcher is anchored, a missing label empty."""
    ((name, inside),) = SELECTOR.findall(expression)
    matchers = [(label, value if kind == "=~" else re.escape(value)) for label, kind, value in MATCHER.findall(inside)]
    return [
        sample
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
        and all(re.fullmatch(value, {**sample.labels, **SCRAPED}.get(label, "")) for label, value in matchers)
    ]


def test_every_alert_has_something_to_look_at(metrics):
    metrics.looked("failed", 0.1)
    metrics.requested("PUT", STATUS, 403)
    metrics.requested("GET", "/api/v1/pods", 500)
    assert [alert for alert, expression in alerts().items() if not matched(expression, metrics)] == []


@pytest.mark.parametrize(
    ("path", "code", "refused"),
    [
        (STATUS, 403, True),
        (STATUS, 422, True),
        (STATUS, 200, False),
        (STATUS, 404, False),
        (STATUS, 409, False),
        ("/api/v1/namespaces/team/pods", 403, False),
    ],
)
def test_a_status_that_is_refused_is_alarming_and_one_that_is_late_is_not(metrics, path, code, refused):
    metrics.requested("PUT", path, code)
    assert bool(matched(alerts()["TorchYardStatusRefused"], metrics)) is refused
