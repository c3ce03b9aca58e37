"""A run of vecrl that takes a moment, without a gang."""

import torch

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.workload import MicroBatch, Session
from torchyard_trainers.core.world import World
from torchyard_trainers.vecrl import params
from torchyard_trainers.vecrl.task import VecRL

ALONE = World(0, 1, 0, torch.device("cpu"), grouped=False)
SMALL = {"environments": 6, "horizon": 8, "epochs": 2, "minibatches": 2, "width": 8, "layers": 1, "evalEpisodes": 4}
SNAKES = {"environment": "snake", "grid": 6, "agents": 3, "food": 3, "view": 3}


def settled(**given):
    return params.resolve_params(SMALL | given, Parallelism())


def session_of(work: VecRL) -> Session:
    model = work.build()
    precision = Precision("fp32", ALONE.device, sharded=False)
    return Session(
        Parallel("single", model, model), precision, ALONE, Reporter(None, rank=0, local_rank=0, round_number=0), None
    )


def everything(work, step=0):
    return MicroBatch(torch.arange(work.global_batch), torch.ones(work.global_batch), step)
