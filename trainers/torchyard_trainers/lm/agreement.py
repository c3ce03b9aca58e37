"""Checks that a model computes here what transformers computes with it, before any step is taken.

The output layer is applied here, a chunk at a time, packed documents are kept apart by their positions, and completions
are generated with a cache. A family that does one of these in another way would train, but learn something else.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from torchyard_trainers.core.data.packing import concatenated
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.model_config import one_line
from torchyard_trainers.core.workload import Session
from torchyard_trainers.lm.models import LanguageModel
from torchyard_trainers.lm.static_cache import bucketed, cache_of, continue_at, grows

LENGTH = 12  # tokens of each of two documents
CACHE = 1024  # tokens that a cache has memory for
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


def check_generation(session: Session, name: str, *, compiled: bool = False) -> None:
    """Check that a model generates completions with a cache as it would without one. Collective.

    Args:
        session: the model, in `eval` mode.
        name: of the model, for messages.
        compiled: whether the model has compiled blocks.

    Raises:
        ConfigError: it does not.
    """
    model = session.parallel.module
    assert isinstance(model, LanguageModel)
    plain: AbstractContextManager[object] = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with session.precision.forward(), plain:
        problem = cache_problem(model, session.world.device, exact=session.precision.name == "fp32")
    if problem is not None:
        raise ConfigError(
            f"trainer.params.pretrained: {name} cannot generate completions: {problem}; use method sft or dpo with "
            "evalCompletions: 0, or another model"
        )


@torch.no_grad()
def cache_problem(model: LanguageModel, device: torch.device, *, exact: bool) -> str | None:
    """Return why completions would not be those of the model; None: the last token of a document is as probable.

    Args:
        model: in `eval` mode.
        device: of its parameters.
        exact: whether it computes in fp32.
    """
    config = model.lm.config.get_text_config()
    length = min(getattr(config, "max_position_embeddings", None) or CACHE, CACHE)
    count = min(LENGTH, length)
    places, mask = torch.arange(count, device=device)[None], torch.ones(1, bucketed(length), device=device).long()
    document = places * max(1, config.vocab_size // LENGTH)
    before, last = slice(0, count - 1), slice(count - 1, count)
    theirs = model(document, plain=True)[:, -1].float().log_softmax(-1)
    kind = repr(model.lm.config.model_type)
    try:
        cache = cache_of(model.lm.config, length)
        model(document[:, before], attention_mask=mask[:, before], position_ids=places[:, before], cache=cache)
        continue_at(cache, places[0, count - 1])
        seen = mask[:, :count] if grows(model.lm.config) else mask
        ours = model(document[:, last], attention_mask=seen, position_ids=places[:, last], cache=cache)
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        return f"models of type {kind} do not take a cache of keys and values ({one_line(error)})"
    chosen = theirs.argmax(-1, keepdim=True)
    wanted, found = (float(each.gather(-1, chosen)) for each in (theirs, ours.float().log_softmax(-1)))
    if abs(found - wanted) <= (TOLERANCE if exact else TOLERANCE_HALF) * max(1.0, abs(wanted)):
        return None
    return (
        f"it gives a token the log-probability {wanted:.4f} in one pass, and {found:.4f} after a cache of keys and "
        f"values: layers of type {kind} read it in a way that is not known here"
    )


def _labels(document: Tensor) -> Tensor:
    return torch.cat([document[1:], document.new_tensor([IGNORE])])
