"""Checks that a model computes here what transformers computes with it, before any step is taken.

The output layer is applied here, a chunk at a time, packed documents are kept apart by their positions, and completions
are generated with a cache. A family that does one of these in another way would train, but learn something else.

Results of the same operations on the same shapes are equal to the bit, in any precision. Where shapes differ, results
may differ as much as the model itself does between two shapes of the same computation.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor

from torchyard_trainers.core.data.packing import concatenated
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.model_config import one_line
from torchyard_trainers.core.workload import Session
from torchyard_trainers.lm.generation.static_cache import bucketed, cache_of, continue_at, grows
from torchyard_trainers.lm.models import LanguageModel

LENGTH = 12  # tokens of each document
CACHE = 1024  # tokens that a cache has memory for
ROUNDED = 4  # roundings between two ways to scale a logit
NOISE = 8  # times the difference between two shapes of the same computation
# Relative difference of hidden states that is rounding even if those two shapes do not differ, in units of the type's
# rounding error: of the sums of each layer, which are made in another order.
LAYERS = 4


@torch.no_grad()
def check_agreement(session: Session, name: str, *, packs: bool, compiled: bool = False) -> None:
    """Check the logits of a document, and that documents in one row do not see each other. Collective.

    Args:
        session: the model, in `eval` mode.
        name: of the model, for messages.
        packs: whether samples are packed.
        compiled: whether the model has compiled blocks.

    Raises:
        ConfigError: logits differ, or documents see each other.
    """
    model = session.parallel.module
    assert isinstance(model, LanguageModel)
    documents = _documents(model, session.world.device)
    with session.precision.forward(), _repeatable(compiled=compiled):
        if problem := _logits_problem(model, documents[2], session.precision.dtype):
            raise ConfigError(f"trainer.params.pretrained: {name} {problem}")
        if packs and (problem := packing_problem(model, documents, session.precision.dtype)):
            raise ConfigError(f"parallelism.microBatchTokens: is set, but in {name} {problem}")


def _documents(model: LanguageModel, device: torch.device) -> Tensor:
    """Return three documents [3, LENGTH] that have no token in common, if there are so many."""
    spread = max(1, model.lm.config.get_text_config().vocab_size // (3 * LENGTH))
    return torch.arange(3 * LENGTH, device=device).mul(spread).view(3, LENGTH)


@contextmanager
def _repeatable(*, compiled: bool) -> Iterator[None]:
    """Have operations give the same bits each time inside a `with` block, wherever PyTorch can."""
    deterministic, warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    # Compiled blocks would make code for these shapes, too.
    plain: AbstractContextManager[object] = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with ExitStack() as stack:
        stack.enter_context(plain)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(deterministic, warn_only=warns)


def _logits_problem(model: LanguageModel, document: Tensor, dtype: torch.dtype) -> str | None:
    """Return how logits differ from those of transformers, which come from equal hidden states; None: they do not."""
    theirs, again, ours = model(document[None], plain=True)[:, 0]
    size = theirs.abs() + theirs.square().mean(-1, keepdim=True).sqrt()
    off = (ours - theirs).abs() - ROUNDED * torch.finfo(dtype).eps * size - NOISE * (again - theirs).abs().max()
    if bool((off <= 0).all()):
        return None
    at = tuple(int(each) for each in torch.unravel_index(off.nan_to_num(torch.inf).argmax(), off.shape))
    return (
        f"has a logit of {float(theirs[at]):.4f} on a text as transformers computes it, but {float(ours[at]):.4f} "
        f"here: models of type {model.lm.config.model_type!r} make their logits in a way that this trainer does not "
        "know; use another model"
    )


def packing_problem(model: LanguageModel, documents: Tensor, dtype: torch.dtype) -> str | None:
    """Return why a document in a row with others is not what it is alone; None: it is.

    Args:
        model: in `eval` mode.
        documents: [3, n] tokens.
        dtype: that it computes in.
    """
    first, other, last = documents
    kind = f"layers of type {model.lm.config.model_type!r}"

    def states(*row: Tensor) -> Tensor:
        """Return the hidden states of the last document of a row."""
        packed = concatenated(row)
        sizes = [len(each) for each in row]
        every: Tensor = model(packed["tokens"], position_ids=packed["positions"], documents=sizes, states=True)
        return every[0, -len(last) :].float()

    behind = states(first, last)
    noise = _most(states(first, last), behind)
    # Experts compute the tokens of all documents at once, and how many each of them gets may change bits: in another
    # order of the same documents, each gets as many.
    pairs: list[Callable[[], tuple[Tensor, Tensor]]] = [
        lambda: (states(other, last), behind),
        lambda: (states(first, other, last), states(other, first, last)),
    ]
    moved = [_most(*pair()) for pair in pairs]
    if min(moved) > NOISE * noise or not all(each < torch.inf for each in moved):
        return (
            f"a text moves by {moved[0]:.3g} when the text before it in the row changes (equal bits are right): "
            f"{kind} see across packed samples; set microBatchSize in its place"
        )
    # In front, a document is computed as alone, whatever its layers see: a measure of what shapes change.
    alone: Tensor = model(last[None], states=True)[0].float()
    front: Tensor = model(torch.cat([last, first])[None], states=True)[0, : len(last)].float()
    bound = _rounding(model, dtype, _apart(front, alone))
    if (apart := _apart(behind, alone)) <= bound:
        return None
    return (
        f"a text differs by {apart:.3g} of its size behind another one from alone, and rounding by up to {bound:.3g}: "
        f"the positions of {kind} do not restart; set microBatchSize in its place"
    )


def _most(first: Tensor, second: Tensor) -> float:
    """Return the largest difference; inf if one is not a number."""
    return float((first - second).abs().nan_to_num(torch.inf).max())


def _apart(values: Tensor, reference: Tensor) -> float:
    """Return the norm of the difference of each token, relative to that of the reference: of half of all tokens, more.

    Rounding may send a few tokens to other experts, while positions are wrong for all tokens.
    """
    sizes = reference.norm(dim=-1).clamp(min=1e-30)
    return float(((values - reference).norm(dim=-1) / sizes).nan_to_num(torch.inf).median())


def _rounding(model: LanguageModel, dtype: torch.dtype, measured: float) -> float:
    """Return the relative difference that rounding explains: errors of layers add up like steps of a random walk."""
    layers: int = model.lm.config.get_text_config().num_hidden_layers
    return max(NOISE * measured, LAYERS * torch.finfo(dtype).eps * layers**0.5)


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
    with session.precision.forward(), _repeatable(compiled=compiled):
        problem = cache_problem(model, session.world.device, dtype=session.precision.dtype)
    if problem is not None:
        raise ConfigError(
            f"trainer.params.pretrained: {name} cannot generate completions: {problem}; use method sft or dpo with "
            "evalCompletions: 0, or another model"
        )


@torch.no_grad()
def cache_problem(model: LanguageModel, device: torch.device, *, dtype: torch.dtype) -> str | None:
    """Return why completions would not be those of the model; None: the logits after a document are the same.

    Args:
        model: in `eval` mode.
        device: of its parameters.
        dtype: that it computes in.
    """
    config = model.lm.config.get_text_config()
    length = min(getattr(config, "max_position_embeddings", None) or CACHE, CACHE)
    count = min(LENGTH, length)
    places, mask = torch.arange(count, device=device)[None], torch.ones(1, bucketed(length), device=device).long()
    document = places * max(1, config.vocab_size // LENGTH)
    before, last = slice(0, count - 1), slice(count - 1, count)
    theirs = model(document)
    # The same document in another shape.
    twice = model(document.expand(2, -1), attention_mask=mask[:, :count].expand(2, -1))[:1]
    kind = repr(model.lm.config.model_type)
    try:
        cache = cache_of(model.lm.config, length)
        model(document[:, before], attention_mask=mask[:, before], position_ids=places[:, before], cache=cache)
        continue_at(cache, places[0, count - 1])
        seen = mask[:, :count] if grows(model.lm.config) else mask
        ours = model(document[:, last], attention_mask=seen, position_ids=places[:, last], cache=cache)
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        return f"models of type {kind} do not take a cache of keys and values ({one_line(error)})"
    found, measured, wanted = (each - each.mean() for each in (ours, twice, theirs))
    bound = _rounding(model, dtype, _apart(measured, wanted))
    if (apart := _apart(found, wanted)) <= bound:
        return None
    return (
        f"after a cache of keys and values its logits differ by {apart:.3g} of their size from those of one pass, and "
        f"rounding by up to {bound:.3g}: layers of type {kind} read it in a way that is not known here"
    )
