"""TorchYard: training jobs on Kubernetes, and on a laptop, that keep training through failures.

    import torchyard as ty

    job = ty.run("job.yaml")        # on this machine; ty.submit("job.yaml") on a cluster
    print(job.status.metrics)

docs/python.md shows what can be done, docs/reference/python-api.md lists it. A name is imported when it is first used:
`import torchyard` imports nothing else.
"""

from typing import TYPE_CHECKING, Any

from torchyard.version import __version__ as __version__

if TYPE_CHECKING:
    from torchyard import aio
    from torchyard.api.resource import ObjectMeta, TrainingJob
    from torchyard.api.spec import TrainingJobSpec
    from torchyard.api.status import TrainingJobStatus
    from torchyard.client.artifacts import Artifact
    from torchyard.client.backend import LogLine
    from torchyard.client.diff import Comparison, Difference
    from torchyard.client.errors import InvalidJobError, JobFailedError, NotFoundError, TorchYardError
    from torchyard.client.explanation import Explanation
    from torchyard.client.functions import JobFunction, job
    from torchyard.client.metrics import MetricsTable
    from torchyard.client.sync import Job, Sweep, diff, get_job, get_sweep, jobs, run, submit, sweep
    from torchyard.client.trials import TrialsTable
    from torchyard.local.run import Event
    from torchyard.sweeps.resource import TrainingSweep
    from torchyard.sweeps.spec import TrainingSweepSpec

_HOMES = {
    "torchyard.aio": ("aio",),
    "torchyard.api.resource": ("ObjectMeta", "TrainingJob"),
    "torchyard.api.spec": ("TrainingJobSpec",),
    "torchyard.api.status": ("TrainingJobStatus",),
    "torchyard.client.artifacts": ("Artifact",),
    "torchyard.client.backend": ("LogLine",),
    "torchyard.client.diff": ("Comparison", "Difference"),
    "torchyard.client.errors": ("InvalidJobError", "JobFailedError", "NotFoundError", "TorchYardError"),
    "torchyard.client.functions": ("JobFunction", "job"),
    "torchyard.client.metrics": ("MetricsTable",),
    "torchyard.client.sync": ("Job", "Sweep", "diff", "get_job", "get_sweep", "jobs", "run", "submit", "sweep"),
    "torchyard.client.trials": ("TrialsTable",),
    "torchyard.client.explanation": ("Explanation",),
    "torchyard.local.run": ("Event",),
    "torchyard.sweeps.resource": ("TrainingSweep",),
    "torchyard.sweeps.spec": ("TrainingSweepSpec",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Artifact",
    "Comparison",
    "Difference",
    "Event",
    "Explanation",
    "InvalidJobError",
    "Job",
    "JobFailedError",
    "JobFunction",
    "LogLine",
    "MetricsTable",
    "NotFoundError",
    "ObjectMeta",
    "Sweep",
    "TorchYardError",
    "TrainingJob",
    "TrainingJobSpec",
    "TrainingJobStatus",
    "TrainingSweep",
    "TrainingSweepSpec",
    "TrialsTable",
    "aio",
    "diff",
    "get_job",
    "get_sweep",
    "job",
    "jobs",
    "run",
    "submit",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'torchyard' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 -- `import torchyard` imports nothing

    module = import_module(_HOME_OF[name])
    value = module if name == "aio" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
