"""The Python API as coroutines: `await torchyard.aio.submit(...)`, the same names as in `torchyard`.

A property of `torchyard.Job` that asks the backend (`status`, `manifest`, `artifacts`) is a method here.
"""

from torchyard.client.jobs import Job, diff, get_job, jobs, run, submit
from torchyard.client.sweeps import Sweep, get_sweep, sweep

__all__ = ["Job", "Sweep", "diff", "get_job", "get_sweep", "jobs", "run", "submit", "sweep"]
