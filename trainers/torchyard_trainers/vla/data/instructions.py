"""Instructions as tokens: by the tokenizer of a pretrained model, or by words for a model with random weights."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.geometry import digest_of
from torchyard_trainers.core.tokenizer_file import WORDS
from torchyard_trainers.core.vocabulary import Vocabulary

PADDING, BEGIN, FIRST = 0, 1, 2  # tokens of a vocabulary of words
_WORD = re.compile(r"\w+|[^\w\s]")


class Instructions:
    """Texts that a run knows, by number; each is padded on the right to the longest.

    Attributes:
        tokens: [n, T] int64.
        mask: [n, T] bool, true for tokens of the text; None: all texts are equally long.
        highest: the largest token.
        fingerprint: a digest of the tokens.
    """

    def __init__(
        self, texts: Sequence[str], *, words: Sequence[str] | None = None, vocabulary: Vocabulary | None = None
    ) -> None:
        """Encode `texts`.

        Args:
            texts: at least one.
            words: of a model with random weights, in their order; None: the words of the texts by the alphabet.
            vocabulary: of a pretrained model, or a tokenizer; None: `words`.

        Raises:
            ConfigError: the vocabulary of the pretrained model lacks a word.
        """
        self._vocabulary = vocabulary or Vocabulary("", words=list(words) if words is not None else _all_words(texts))
        encoded = _encoded(texts, self._vocabulary)
        longest = max(map(len, encoded))
        padded = [each + [PADDING] * (longest - len(each)) for each in encoded]
        self.tokens = torch.tensor(padded)
        self.fingerprint = digest_of(padded)
        differ = any(len(each) < longest for each in encoded)
        lengths = torch.tensor([len(each) for each in encoded])
        self.mask: Tensor | None = torch.arange(longest) < lengths[:, None] if differ else None
        self.highest = max(map(max, encoded))

    def of(self, numbers: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return tokens [m, T] and mask [m, T] of texts [m], on the device of their numbers."""
        tokens = self.tokens.to(numbers.device)[numbers]
        return tokens, None if self.mask is None else self.mask.to(numbers.device)[numbers]

    def assets(self) -> Mapping[str, Path | str]:
        """Return the file that encodes instructions of an exported policy."""
        return self._vocabulary.assets()


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in small letters."""
    return _WORD.findall(text.lower())


def _all_words(texts: Sequence[str]) -> list[str]:
    return sorted({word for text in texts for word in split_words(text)})


def _encoded(texts: Sequence[str], vocabulary: Vocabulary) -> list[list[int]]:
    if vocabulary.tokenizer is not None:
        # The prompt of PaliGemma and pi0 ends with a new line.
        return [vocabulary.tokenizer.encode(f"{text}\n").ids for text in texts]
    assert vocabulary.words is not None
    numbers = {word: FIRST + place for place, word in enumerate(vocabulary.words)}
    for text in texts:
        unknown = [word for word in split_words(text) if word not in numbers]
        if unknown:
            raise ConfigError(
                f"{vocabulary.at}/{WORDS} lacks {unknown[0]!r} of the instruction {text!r}; use a model that was "
                "trained with such instructions, or one with a tokenizer.json"
            )
    return [[BEGIN, *(numbers[word] for word in split_words(text))] for text in texts]
