"""Pages of /metrics as the operator writes them over time, and the real Prometheus that reads them."""

import contextlib
import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.charts import NAMESPACE
from tests.support.waiting import DEADLINE

from torchyard.app.job_metrics import JobMetrics
from torchyard.app.probes import Metrics
from torchyard_agent.workers.ports import ReservedPort

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchyard/kind/programs"
BUILT = next(iter(sorted(_CACHE.glob("prometheus-*"))), None)
PROMETHEUS, PROMTOOL = (
    shutil.which(name) or (str(BUILT / name) if BUILT is not None else None) for name in ("prometheus", "promtool")
)
needs_prometheus = pytest.mark.skipif(
    not (PROMETHEUS and PROMTOOL), reason="no prometheus and promtool on PATH or in the cache: `make prometheus`"
)
START = 1_700_000_000 // 7200 * 7200
"""Unix seconds of the first scrape: a block of Prometheus begins there."""
SCRAPED = {"namespace": NAMESPACE, "service": "torchyard-metrics", "instance": "10.0.0.7:8443", "job": "torchyard"}
Series = dict[tuple[str, tuple[tuple[str, str], ...]], list[float | None]]


class Operator:
    """What the operator knows; a test changes it from scrape to scrape."""

    def __init__(self) -> None:
        self.jobs, self.limit, self.depth, self.leads = [], 500, 0, True
        self.dropped = 0.0
        self.metrics = Metrics(
            jobs=lambda: {"Running": len(self.jobs)}, depth=lambda: self.depth, leading=lambda: self.leads,
            counts=lambda: [("torchyard_notifications_dropped_total", "Dropped.", self.dropped),
                            ("torchyard_intake_connections", "Connections.", 1), ("torchyard_intake_held", "Held.", 1)],
        )  # fmt: skip

    async def page(self, now: float) -> str:
        """The text of /metrics, of which `operator._metrics_page` consists, too."""
        jobs = JobMetrics(self.jobs, lambda: self.leads, self.limit, lambda: now)
        return (generate_latest(self.metrics.registry) + await jobs.page()).decode()


async def scraped(operator: Operator, change: Callable[[Operator, int], None], scrapes: int, seconds: int) -> Series:
    """Return the value of each series at each scrape; None: it had none."""
    found: Series = {}
    for number in range(scrapes):
        change(operator, number)
        page = await operator.page(START + number * seconds)
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                key = (sample.name, tuple(sorted({**sample.labels, **SCRAPED}.items())))
                values = found.setdefault(key, [])
                values += [None] * (number - len(values))
                values.append(sample.value)
    return found


def check_alerts(rules: dict, series: Series, firing: dict[int, list[dict[str, str]]], folder: Path) -> None:
    """Check that exactly these alerts fire at each of these minutes, as Prometheus evaluates them.

    Args:
        rules: content of a PrometheusRule.
        series: from `scraped`, one scrape a minute.
        firing: labels of the alerts by minute: alertname, job_name, reason, as far as they have them.
        folder: for the files.
    """
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    inputs = [{"series": _selector(*key), "values": " ".join(map(_notation, values))} for key, values in series.items()]
    tests = [
        {"expr": 'count by (alertname, job_name, reason) (ALERTS{alertstate="firing"})', "eval_time": f"{minute}m",
         "exp_samples": [{"labels": _selector("", tuple(each.items())), "value": 1} for each in alerts]}
        for minute, alerts in firing.items()
    ]  # fmt: skip
    document = {
        "rule_files": ["rules.yaml"], "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": inputs, "promql_expr_test": tests}],
    }  # fmt: skip
    (folder / "tests.yaml").write_text(yaml.safe_dump(document))
    done = promtool("test", "rules", "tests.yaml", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def promtool(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    argv = [str(PROMTOOL), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=DEADLINE, cwd=cwd)


def _selector(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    inside = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels)
    return f"{name}{{{inside}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _notation(value: float | None) -> str:
    return "_" if value is None else "NaN" if math.isnan(value) else repr(value)


@contextlib.contextmanager
def server(series: Series, seconds: int, folder: Path) -> Iterator[str]:
    """Yield the URL of a Prometheus that has these series, scraped every so many seconds from `START` on."""
    lines = [
        f"{_selector(*key)} {_notation(value)} {START + number * seconds}\n"
        for key, values in series.items()
        for number, value in enumerate(values)
        if value is not None
    ]
    (folder / "scraped.txt").write_text("".join(lines) + "# EOF\n")
    made = promtool("tsdb", "create-blocks-from", "openmetrics", "scraped.txt", "data", cwd=folder)
    assert made.returncode == 0, made.stderr
    (folder / "prometheus.yml").write_text("{}\n")
    held = ReservedPort()
    port = held.number()
    held.lend()
    argv = [str(PROMETHEUS), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def asked(url: str, query: str, at: float) -> list[dict]:
    """Return the samples of a query at a time; raise OSError until the server answers, AssertionError for an error."""
    words = urlencode({"query": query, "time": at})
    try:
        with urlopen(f"{url}/api/v1/query?{words}", timeout=DEADLINE) as answer:
            return json.load(answer)["data"]["result"]
    except HTTPError as error:
        said = error.read().decode()
        if error.code == 503:  # it replays its log
            raise OSError(said) from error
        raise AssertionError(f"{query}: {said}") from error
