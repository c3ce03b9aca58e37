"""Completions of several turns, between which tools answer what the model calls.

A completion is one sequence of tokens: turns of the model as they were sampled, and between them the answers of tools
as the chat template writes them. Nothing is rendered again, so the model is trained on the tokens that it has said.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.core.device import only_shapes
from torchyard_trainers.core.parallel import SHARDED
from torchyard_trainers.core.workload import Session
from torchyard_trainers.lm.chat.tool_calls import ToolCall, ToolFormat
from torchyard_trainers.lm.functions.tools import ToolAnswer, Tools
from torchyard_trainers.lm.generation.engine import Completions, Engine, Sampling


class ToolUse(NamedTuple):
    """The tools of a run, and how its chat template writes them."""

    tools: Tools
    format: ToolFormat
    tokenizer: Any
    ends: Sequence[int]  # tokens that end a turn
    max_turns: int  # of the model in a completion


@dataclass
class _Talk:
    """One completion in the making."""

    tokens: list[int] = field(default_factory=list)
    generated: list[bool] = field(default_factory=list)  # which of them the model said
    stopped: bool = False  # with an answer, not cut off
    called: int = 0
    failed: int = 0

    def add(self, tokens: Sequence[int], *, generated: bool) -> None:
        """Continue with more tokens."""
        self.tokens += tokens
        self.generated += [generated] * len(tokens)


class ToolEngine:
    """Generates completions with another engine, turn by turn; see `Engine`."""

    def __init__(self, engine: Engine, use: ToolUse, session: Session) -> None:
        """Use an engine, which all ranks of the session call equally often if the model is sharded."""
        self._engine, self._use, self._world = engine, use, session.world
        self._reporter = session.reporter
        self._sharded = session.parallel.strategy in SHARDED

    def on_current_weights(self) -> AbstractContextManager[None]:
        """See `Engine`."""
        return self._engine.on_current_weights()

    def generate(self, prompts: Sequence[Sequence[int]], ids: Tensor, sampling: Sampling) -> Completions:
        """See `Engine`; `max_new_tokens` limits all turns of a completion and what tools answer. Collective."""
        if only_shapes():  # a turn as long as a completion takes most memory
            return self._engine.generate(prompts, ids, sampling)
        talks = [_Talk() for _ in prompts]
        active = list(range(len(prompts)))
        for turn in range(self._use.max_turns):
            left = [sampling.max_new_tokens - len(talks[each].tokens) for each in active]
            longest = max(self._world.gather(max(left, default=0)))  # on all ranks, as are the passes of a turn
            if not longest:
                break
            # The first turn is sampled as a completion without tools is.
            stream = f"{sampling.stream}/{turn}" if turn else sampling.stream
            asked = active or ([0] if self._sharded else [])
            if not asked:
                continue
            found = self._engine.generate(
                [[*prompts[each], *talks[each].tokens] for each in asked],
                ids[torch.tensor(asked)],
                sampling._replace(max_new_tokens=longest, stream=stream),
            )
            if active:
                active = self._continued(active, talks, found, sampling, last=turn + 1 == self._use.max_turns)
            self._reporter.goes_on()
        return _completions(talks)

    def _continued(
        self, active: Sequence[int], talks: Sequence[_Talk], found: Completions, sampling: Sampling, *, last: bool
    ) -> list[int]:
        """Add a turn to completions, and the answers of the tools that it calls; return which have another turn."""
        called: list[tuple[int, list[ToolCall], int]] = []
        rows = zip(found.tokens.tolist(), found.lengths.tolist(), found.stopped.tolist(), strict=True)
        for number, (row, length, stopped) in zip(active, rows, strict=True):
            talk, said = talks[number], row[:length]
            room = sampling.max_new_tokens - len(talk.tokens)
            talk.add(said[:room], generated=True)
            if not stopped or length > room:
                continue
            calls = self._calls(said)
            if not calls:
                talk.stopped = True
            elif not last:
                called.append((number, calls, said[-1]))
        answers = iter(self._use.tools([call for _, calls, _ in called for call in calls]))
        again = []
        for number, calls, end in called:
            talk, own = talks[number], [next(answers) for _ in calls]
            talk.called += len(calls)
            talk.failed += sum(each.failed for each in own)
            tokens = self._answered(calls, own, end)
            if len(talk.tokens) + len(tokens) < sampling.max_new_tokens:
                talk.add(tokens, generated=False)
                again.append(number)
        return again

    def _calls(self, said: Sequence[int]) -> list[ToolCall]:
        """Return the calls in a turn of the model, whose tokens of calls may be special ones."""
        text = self._use.tokenizer.decode([each for each in said if each not in self._use.ends])
        return self._use.format.calls(text)

    def _answered(self, calls: Sequence[ToolCall], answers: Sequence[ToolAnswer], end: int) -> list[int]:
        tokenizer = self._use.tokenizer
        text = tokenizer.convert_ids_to_tokens(end) if end in self._use.ends else None
        written = self._use.format.answer(calls, [each.text for each in answers], text)
        found: list[int] = tokenizer(written, add_special_tokens=False)["input_ids"]
        return found


def _completions(talks: Sequence[_Talk]) -> Completions:
    width = max(1, *(len(each.tokens) for each in talks))

    def padded(rows: Sequence[Sequence[Any]], dtype: torch.dtype) -> Tensor:
        return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=dtype)

    return Completions(
        padded([each.tokens for each in talks], torch.int64),
        padded([[True] * len(each.tokens) for each in talks], torch.bool),
        torch.tensor([each.stopped for each in talks]),
        generated=padded([each.generated for each in talks], torch.bool),
        calls=torch.tensor([[each.called, each.failed] for each in talks]),
    )
