"""The built-in CVRP with a pause after each step: faults find it in the middle, and others find a processor."""

import os
import time

from torchyard_trainers.cvrp.params import resolve_params  # noqa: F401 - of the workload
from torchyard_trainers.cvrp.task import Cvrp


class Patient(Cvrp):
    def after_step(self, session, step, means):
        time.sleep(float(os.environ.get("PAUSE", "0.1")))
        return super().after_step(session, step, means)
