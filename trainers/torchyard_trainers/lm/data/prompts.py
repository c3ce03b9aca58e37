"""Prompts as tokens, for rollouts and for evaluation: of the built-in tasks, or of records."""

from collections.abc import Sequence
from typing import Any

from torchyard_trainers.lm.data.batches import encode
from torchyard_trainers.lm.data.records import Prompt
from torchyard_trainers.lm.settings import Settings
from torchyard_trainers.lm.tasks import rows_of
from torchyard_trainers.lm.tokens import stop_tokens

# Prompts of rollouts follow those of supervised steps by far, so that none is in both.
FIRST_PROMPT = 2**40
# Characters of a prompt beside its letters or digits, and special tokens.
_BESIDE = 16


class Prompts:
    """Prompts by id, and the conversion of completions to text; these are prompts of the built-in tasks.

    Attributes:
        ends: tokens that end a completion: that of the tokenizer and those of `stop`; a model adds its own.
    """

    def __init__(self, settings: Settings, tokenizer: Any) -> None:
        """Take the tokenizer of the model."""
        self._settings, self.tokenizer = settings, tokenizer
        self.pad: int = tokenizer.pad_token_id
        self._stops = stop_tokens(tokenizer, settings.stop)
        self.end_at([tokenizer.eos_token_id])

    def end_at(self, ends: Sequence[int]) -> None:
        """End completions at some tokens, and at those of `stop`."""
        self.ends: tuple[int, ...] = tuple(sorted({*ends, *self._stops}))

    @property
    def longest(self) -> int:
        """A bound on the tokens of a prompt."""
        return 2 * self._settings.length + _BESIDE  # a token has at least one character

    def of_ids(self, ids: Sequence[int]) -> list[Prompt]:
        """Return prompts of rollouts."""
        return self._made([FIRST_PROMPT + each for each in ids], held_out=False)

    def held_out(self, ids: Sequence[int]) -> list[Prompt]:
        """Return prompts of the evaluation set."""
        return self._made(ids, held_out=True)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones and without those that end a completion."""
        said = [each for each in tokens if each not in self.ends]
        text: str = self.tokenizer.decode(said, skip_special_tokens=True)
        return text

    def _made(self, ids: Sequence[int], *, held_out: bool) -> list[Prompt]:
        settings = self._settings
        rows = rows_of(
            settings.task, settings.seed, ids, length=settings.length, symbols=settings.symbols, held_out=held_out
        )
        tokens = encode(self.tokenizer, [row.prompt for row in rows])
        return [Prompt(row.prompt, each, row._asdict()) for row, each in zip(rows, tokens, strict=True)]
