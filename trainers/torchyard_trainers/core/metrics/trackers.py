"""Experiment trackers in addition to our own curves: Weights & Biases and MLflow, one tracker run per job.

Their own environment variables configure them (`WANDB_MODE`, `WANDB_PROJECT`, `MLFLOW_TRACKING_URI`, keys in
`envFrom`). Without any, W&B asks for a key, and MLflow writes files below the checkpoint folder. A round that
resumes a job continues the job's run. A tracker error is reported once and never stops training, nor does waiting
for its server: by default both retry for minutes at the start and without limit at the end.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec

from torchyard_trainers.core.config import Config
from torchyard_trainers.core.exits import ConfigError

PROJECT = "torchyard"
INIT_SECONDS = 60.0
# Defaults for unset variables: give up an unreachable server after about a minute.
PATIENCE = {
    "WANDB_FINISH_TIMEOUT": "60",
    "WANDB_FINISH_TIMEOUT_RAISES": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "5",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
JOB_TAG = "torchyard.job"
MLRUNS = "mlruns"
PENDING = 100


# Rows of a table, by the names of its columns.
Table = Sequence[Mapping[str, str | float]]


class Tracker(Protocol):
    """A destination for scalars by step."""

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step; of two calls for the same step, the later one counts."""

    def show(self, step: int, rows: Table) -> None:
        """Log a table of samples."""

    def close(self, *, failed: bool) -> None:
        """Mark the run as finished and flush pending metrics."""


def check_trackers(config: Config) -> None:
    """Check that the packages of the requested trackers are installed.

    Raises:
        ConfigError: naming field and package.
    """
    for field, wanted, package in (
        ("logging.wandb", config.logging.wandb, "wandb"),
        ("logging.mlflow", config.logging.mlflow, "mlflow"),
    ):
        if wanted and find_spec(package) is None:
            raise ConfigError(
                f"{field}: true needs {package}, which is not installed here; install torchyard[{package}] or leave it "
                "out"
            )


class Trackers:
    """All trackers of a run. A tracker that fails is disabled, and `warn` is called with the reason."""

    def __init__(self, config: Config, folder: Path, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._trackers: dict[str, Tracker] = {}
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        if config.logging.wandb:
            self._guard("logging.wandb", lambda: self._trackers.update({"logging.wandb": Wandb(config, folder)}))
        if config.logging.mlflow:
            self._guard("logging.mlflow", lambda: self._trackers.update({"logging.mlflow": Mlflow(config, folder)}))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step to all trackers."""
        for field, tracker in list(self._trackers.items()):
            self._guard(field, lambda tracker=tracker: tracker.add(step, values))

    def show(self, step: int, rows: Table) -> None:
        """Log a table of samples to all trackers."""
        for field, tracker in list(self._trackers.items()):
            self._guard(field, lambda tracker=tracker: tracker.show(step, rows))

    def close(self, *, failed: bool) -> None:
        """Finish all trackers."""
        for field, tracker in list(self._trackers.items()):
            self._guard(field, lambda tracker=tracker: tracker.close(failed=failed))

    def _guard(self, field: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - these libraries raise any exception
            self._trackers.pop(field, None)
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._warn(f"{field}: {first}; it is disabled; metrics.jsonl has all curves")


class Wandb:
    """A run of Weights & Biases whose id is the job's uid."""

    def __init__(self, config: Config, folder: Path) -> None:
        import wandb

        self._run = wandb.init(
            dir=folder,
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=config.job.uid or None,
            name=config.job.name or None,
            resume="allow",
            config=msgspec.to_builtins(config),
            settings=wandb.Settings(console="off", init_timeout=INIT_SECONDS, silent=True),
        )
        # W&B drops metrics whose step is smaller than the last one, so a resumed round uses a separate step axis.
        self._run.define_metric("*", step_metric="step")

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._run.log({"step": step, **values})

    def show(self, step: int, rows: Table) -> None:
        """See `Tracker`."""
        import wandb

        columns = list(rows[0])
        table = wandb.Table(columns=columns, data=[[row[name] for name in columns] for row in rows])
        self._run.log({"step": step, "samples": table})

    def close(self, *, failed: bool) -> None:
        """See `Tracker`."""
        self._run.finish(exit_code=1 if failed else 0)


class Mlflow:
    """A run of MLflow tagged with the job's uid."""

    def __init__(self, config: Config, folder: Path) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            # MLflow defaults to a database; files can be fetched and moved with the folder.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (folder / MLRUNS).absolute().as_uri()
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.ERROR)
        self._client = MlflowClient(tracking_uri=uri)
        self._run = self._find(config) or self._create(config)
        self._pending: deque[Any] = deque(maxlen=PENDING)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        from mlflow.entities import Metric

        while self._pending and _is_over(self._pending[0]):  # report failures before more calls queue up
            self._pending.popleft().wait()
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._pending.append(self._client.log_batch(self._run, metrics=metrics, synchronous=False))

    def show(self, step: int, rows: Table) -> None:
        """See `Tracker`."""
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        self._client.log_dict(self._run, columns, f"samples/step-{step:08d}.json")

    def close(self, *, failed: bool) -> None:
        """See `Tracker`."""
        for operation in self._pending:
            operation.wait()
        self._client.set_terminated(self._run, status="FAILED" if failed else "FINISHED")

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        return found.experiment_id if found is not None else self._client.create_experiment(name)

    def _find(self, config: Config) -> str | None:
        if not config.job.uid:
            return None
        wanted = f"tags.`{JOB_TAG}` = '{config.job.uid}'"
        found = self._client.search_runs([self._experiment()], filter_string=wanted, max_results=1)
        if not found:
            return None
        identity: str = found[0].info.run_id
        self._client.update_run(identity, status="RUNNING")
        return identity

    def _create(self, config: Config) -> str:
        tags = {JOB_TAG: config.job.uid} if config.job.uid else {}
        run = self._client.create_run(self._experiment(), run_name=config.job.name or None, tags=tags)
        for name, value in {**config.trainer.params, "trainer": config.trainer.name}.items():
            self._client.log_param(run.info.run_id, name, value)
        identity: str = run.info.run_id
        return identity


def _is_over(operation: Any) -> bool:
    return all(future.done() for future in operation._operation_futures)  # noqa: SLF001 - it offers to wait only
