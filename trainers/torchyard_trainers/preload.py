"""Imports for the zygote: all modules that take time to import, before workers are forked.

For `TORCHYARD_PRELOAD=torchyard_trainers.preload`. Initialises no device and starts no thread.
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
