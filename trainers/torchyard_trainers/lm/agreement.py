"""Checks that a model computes here what transformers computes with it, before any step is taken.

The output layer is applied here, a chunk at a time, and packed documents are kept apart by their positions. A family
that does either in another way would train, but learn something else.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from torchyard_trainers.core.data.packing import concatenated
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.workload import Session
from torchyard_trainers.lm.models import LanguageModel

LENGTH = 12  # tokens of each of two documents
# Between losses per token: of the same sums in another order, in fp32 and in half precision.
TOLERANCE, TOLERANCE_HALF = 1e-3, 0.3


@torch.no_grad()
def check_agreement(session: Session, name: str, *, packs: bool, compiled: bool = False) -> None:
    """Check the loss of two documents, and that of both in one row. Collective.

    Args:
        session: the model, in `eval` mode.
        name: of the model, for messages.
        packs: whether samples are packed.
        compiled: whether the model has compiled blocks.

    Raises:
        ConfigError: the losses differ.
    """
    model, device = session.parallel.module, session.world.device
    assert isinstance(model, LanguageModel)
    spread = max(1, model.lm.config.get_text_config().vocab_size // (2 * LENGTH))
    first, second = torch.arange(2 * LENGTH, device=device).mul(spread).view(2, LENGTH)
    tolerance = TOLERANCE if session.precision.name == "fp32" else TOLERANCE_HALF
    # Compiled blocks would make code for these shapes, too.
    plain: AbstractContextManager[object] = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with session.precision.forward(), plain:
        logits = model(second[None], plain=True)
        theirs = float(F.cross_entropy(logits[0, :-1].float(), second[1:]))
        ours = float(model(second[None], _labels(second)[None])) / (LENGTH - 1)
        if not abs(ours - theirs) <= tolerance * max(1.0, theirs):
            raise ConfigError(
                f"trainer.params.pretrained: {name} has a loss of {theirs:.4f} on a text as transformers computes it, "
                f"but {ours:.4f} here: models of type {model.lm.config.model_type!r} make their logits in a way that "
                "this trainer does not know; use another model"
            )
        if packs:
            row = concatenated([first, second])
            labels = torch.cat([torch.full_like(first, IGNORE), _labels(second)])
            packed = float(model(row["tokens"], labels[None], position_ids=row["positions"])) / (LENGTH - 1)
            if not abs(packed - ours) <= tolerance * max(1.0, theirs):
                raise ConfigError(
                    f"parallelism.microBatchTokens: is set, but in {name} a text has a loss of {packed:.4f} behind "
                    f"another one, and {ours:.4f} alone: layers of type {model.lm.config.model_type!r} see across "
                    "packed samples; set microBatchSize in its place"
                )


def _labels(document: Tensor) -> Tensor:
    return torch.cat([document[1:], document.new_tensor([IGNORE])])
