"""Completions of prompts, generated with the weights in training.

What is sampled depends on the weights, the prompt, the sample's id and the position only: not on the world size, the
other samples of a batch, or a generator's state.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from torchyard_trainers.core.device import can_sync, only_shapes
from torchyard_trainers.core.graphs import Graphed
from torchyard_trainers.lm.generation.static_cache import bucketed, cache_of, continue_at, grows
from torchyard_trainers.rl.sampling import choose, draws_of, restrict

# A check whether all completions have ended synchronises with the GPU, or with the other ranks.
STEPS_BETWEEN_CHECKS = 8
# Recording a pass takes as long as a few of them; shorter completions are not worth it.
WORTH_A_GRAPH = 32


class Sampling(NamedTuple):
    """How tokens are chosen, and when a completion ends."""

    max_new_tokens: int
    temperature: float = 1.0  # 0: the most probable token
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0
    stop_tokens: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()  # strings; the completion ends with the token that completes one
    seed: int = 0
    stream: str = "completions"  # what the random numbers are for
    held_out: bool = False  # draw numbers that no training stream can draw


class Completions(NamedTuple):
    """Completions of n prompts, padded on the right."""

    tokens: Tensor  # [n, L] int64, 0 after the end
    mask: Tensor  # [n, L] bool, true for tokens of the completion, the stop token included
    stopped: Tensor  # [n] bool: ended by a stop token or string, not cut off
    sampled: Tensor | None = None  # [n, L] log-probabilities, where they are not those of the model in training
    generated: Tensor | None = None  # [n, L] bool, true for tokens of the model; None: all, since no tool answered
    calls: Tensor | None = None  # [n, 2] calls of tools, and those of them that failed

    @property
    def lengths(self) -> Tensor:
        """The tokens of each completion: [n]."""
        return self.mask.sum(1)


class Engine(Protocol):
    """Generates completions; every rank calls it equally often."""

    def on_current_weights(self) -> AbstractContextManager[None]:
        """Generate with the weights as they are now inside a `with` block, which must not change them. Collective."""

    def generate(self, prompts: Sequence[Sequence[int]], ids: Tensor, sampling: Sampling) -> Completions:
        """Return a completion of each prompt.

        Args:
            prompts: tokens of n prompts of any length, at least one token each.
            ids: [n] int64, a number for each completion that determines its random numbers.
            sampling: how to choose tokens, and when to end.
        """


class WeightsEngine:
    """Generates with a model in this process, with cached keys and values."""

    def __init__(
        self,
        model: nn.Module,
        config: Any,
        *,
        device: torch.device,
        decode: Callable[[Sequence[int]], str] | None = None,
        all_ranks: Callable[[bool], bool] | None = None,
        compiled: bool = False,
        graphs: bool = False,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Use a model whose weights change in place.

        Args:
            model: called with tokens [n, T] and `attention_mask`, `position_ids` and `cache`; returns the logits [n, V]
                that follow the last token.
            config: of the model, for its cache; at its last position a completion is cut off.
            device: of the model.
            decode: converts tokens to text; needed for stop strings only.
            all_ranks: whether a value is true on all ranks; needed if a forward pass is collective.
            compiled: the model has compiled blocks; generation, whose shapes are others, uses their plain code.
            graphs: on a GPU, record the pass that adds a token as a CUDA graph; not if the pass is collective.
            within: returns what the model computes within, such as its precision.
        """
        self._model, self._config, self._device = model, config, device
        self._positions = getattr(config.get_text_config(), "max_position_embeddings", None)
        self._decode, self._all_ranks = decode, all_ranks
        self._compiled, self._graphs, self._within = compiled, graphs, within

    def on_current_weights(self) -> AbstractContextManager[None]:
        """See `Engine`."""
        return self._within()

    @torch.no_grad()
    def generate(self, prompts: Sequence[Sequence[int]], ids: Tensor, sampling: Sampling) -> Completions:
        """See `Engine`."""
        assert len(prompts) == len(ids) > 0
        assert all(prompts), "a prompt has at least one token"
        plain: AbstractContextManager[object] = nullcontext()
        if self._compiled:
            plain = torch.compiler.set_stance("force_eager")
        with _evaluating(self._model), plain:
            return self._generate(prompts, ids.to(self._device), sampling)

    def _generate(self, prompts: Sequence[Sequence[int]], ids: Tensor, sampling: Sampling) -> Completions:
        device, longest = self._device, sampling.max_new_tokens
        if self._positions is not None:  # of any prompt, so that ranks make as many passes
            longest = max(min(longest, self._positions - 1), 1)
        inputs, real = left_padded(prompts, device)
        width = inputs.shape[1]
        cache, growing = cache_of(self._config, width + longest), grows(self._config)
        # Places after the last token are hidden, since they are in its future: the mask is the same in each pass.
        mask = torch.nn.functional.pad(real, (0, bucketed(width + longest) - width), value=1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        places = torch.arange(width, width + longest, device=device)
        most = None  # tokens of each completion, where positions do not suffice for all
        if self._positions is not None and width + longest > self._positions:
            most = self._positions - real.sum(1)
            positions = positions.clamp(max=self._positions - 1)
        draws = _draws(ids, sampling, longest)
        ends = torch.tensor(sampling.stop_tokens, dtype=torch.int64, device=device)
        tokens = torch.zeros(len(prompts), longest, dtype=torch.int64, device=device)
        kept = torch.zeros_like(tokens, dtype=torch.bool)
        ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        cut = torch.zeros_like(ended)

        def add_a_token(last: Tensor, position: Tensor, place: Tensor, draw: Tensor | None) -> Tensor:
            continue_at(cache, place)
            seen = mask[:, : width + at] if growing else mask
            logits = self._model(last[:, None], attention_mask=seen, position_ids=position[:, None], cache=cache)
            return _next(logits, sampling, draw)

        # A graph reads the memory of this cache and of these weights, so each rollout records its own.
        step = Graphed(add_a_token, wanted=self._graphs and not growing and longest >= WORTH_A_GRAPH)
        chosen = torch.empty(0)
        for at in _places(longest):
            draw = None if draws is None else draws[:, at]
            if at:
                chosen = step(chosen, positions[:, width + at - 1], places[at - 1], draw)
            else:
                logits = self._model(inputs, attention_mask=real, position_ids=positions[:, :width], cache=cache)
                chosen = _next(logits, sampling, draw)
            kept[:, at] = ~ended
            tokens[:, at] = chosen.masked_fill(ended, 0)
            ended = ended | torch.isin(chosen, ends)
            if sampling.stop and not only_shapes():
                ended = ended | self._at_a_stop(tokens[:, : at + 1], ended, sampling.stop)
            if most is not None:
                cut = cut | (~ended & (at + 1 >= most))
                ended = ended | cut
            if self._all_over(ended, at):
                break
        used = longest if only_shapes() else max(int(kept.sum(1).max()), 1)
        return Completions(tokens[:, :used], kept[:, :used], ended & ~cut)

    @torch.no_grad()
    def stream(self, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """Yield the tokens of one completion as they are chosen, the stop token included."""
        inputs = torch.tensor([list(prompt)], device=self._device)
        count = sampling.max_new_tokens
        if self._positions is not None:
            count = min(count, max(self._positions - len(prompt), 1))
        length = len(prompt) + count
        places = torch.arange(length, device=self._device)[None]
        mask, cache = torch.ones_like(places), cache_of(self._config, length)
        draws = _draws(torch.zeros(1, dtype=torch.int64, device=self._device), sampling, count)
        for at in range(count):
            end = len(prompt) + at
            logits = self._model(
                inputs, attention_mask=mask[:, :end], position_ids=places[:, end - inputs.shape[1] : end], cache=cache
            )
            chosen = _next(logits, sampling, None if draws is None else draws[:, at])
            token = int(chosen)
            yield token
            if token in sampling.stop_tokens:
                return
            inputs = chosen[:, None]

    def _all_over(self, ended: Tensor, at: int) -> bool:
        if only_shapes():
            return False
        if (self._all_ranks is not None or not can_sync(ended)) and (at + 1) % STEPS_BETWEEN_CHECKS:
            return False
        over = bool(ended.all())
        return over if self._all_ranks is None else self._all_ranks(over)

    def _at_a_stop(self, tokens: Tensor, ended: Tensor, stop: tuple[str, ...]) -> Tensor:
        """Return which completions that had not ended contain a stop string now: [n] bool."""
        assert self._decode is not None, "stop strings need a tokenizer"
        # A character has up to four tokens, those of its bytes; a string that ended earlier was found earlier.
        tail = 4 * max(map(len, stop)) + 4
        found = [
            not over and any(text in decoded for text in stop)
            for over, decoded in zip(
                ended.tolist(), (self._decode(row) for row in tokens[:, -tail:].tolist()), strict=True
            )
        ]
        return torch.tensor(found, device=tokens.device)


def _places(longest: int) -> Sequence[int]:
    """Return the places of a completion that are computed: of shapes the first, after the prompt, and the last."""
    return sorted({0, longest - 1}) if only_shapes() else range(longest)


def left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return prompts padded on the left, and the mask of their real tokens: [n, T] int64 each."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(prompt)) + [*prompt] for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return tokens.to(device), mask.to(device)


def texts_of(completions: Completions, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> list[str]:
    """Return the text of each completion up to its stop string; `decode` leaves out special tokens.

    Of several turns it is that of the last one, behind the last answer of a tool.
    """
    found = []
    begins = [0] * len(completions.tokens)
    if completions.generated is not None:
        answered = completions.mask & ~completions.generated
        places = torch.arange(1, answered.shape[1] + 1, device=answered.device)
        begins = (answered * places).amax(1).tolist()
    for row, begin, length in zip(completions.tokens.tolist(), begins, completions.lengths.tolist(), strict=True):
        text = decode(row[begin:length])
        ends = [at for each in stop if (at := text.find(each)) >= 0]
        found.append(text[: min(ends)] if ends else text)
    return found


def _draws(ids: Tensor, sampling: Sampling, count: int) -> Tensor | None:
    if sampling.temperature == 0:
        return None
    return draws_of(sampling.seed, sampling.stream, ids, 0, count, held_out=sampling.held_out)


def _next(logits: Tensor, sampling: Sampling, draw: Tensor | None) -> Tensor:
    if draw is None:
        return logits.argmax(-1)
    return choose(restrict(logits.float() / sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p), draw)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in `eval` mode, without dropout, inside a `with` block."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)
