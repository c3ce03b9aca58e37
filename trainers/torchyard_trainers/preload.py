"""What a warm parent imports before it forks workers: all that takes time.

For `TORCHYARD_PRELOAD=torchyard_trainers.preload`. Touches no device and starts no thread, so that the workers can.
"""

from contextlib import suppress

import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp  # noqa: F401 - imported for the children

import torchyard_trainers.core.worker
import torchyard_trainers.cvrp.task
import torchyard_trainers.vecrl.task  # noqa: F401 - imported for the children

with suppress(ImportError):
    import tensorboard.summary.writer.event_file_writer  # noqa: F401 - imported for the children
