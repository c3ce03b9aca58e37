"""Procedural tasks: prompts without end, made from sample ids, whose answers a function can check."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key

# Of every run, whatever its seed, so that results can be compared; no training sample is part of it.
EVALUATION_SEED = 1234
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Row(NamedTuple):
    """One sample: what is asked, the right answer, and a wrong one of the same form for preferences."""

    prompt: str
    answer: str
    wrong: str


def rows_of(
    task: str, seed: int, ids: Sequence[int] | Tensor, *, length: int, symbols: int, held_out: bool = False
) -> list[Row]:
    """Return the samples of these ids; those of a held-out set are never trained on, whatever the seeds.

    Args:
        task: a key of `TASKS`.
        seed: of the run.
        ids: global sample ids.
        length: symbols of a sequence, or digits of a number.
        symbols: different symbols of a sequence.
        held_out: of the evaluation set.
    """
    key = stream_key(EVALUATION_SEED if held_out else seed, f"lm/{task}", held_out=held_out)
    # The forecast of a step has ids without values: any samples have the same shapes.
    known = range(len(ids)) if isinstance(ids, FakeTensor) else ids
    with unset_fake_temporarily():
        keys = split_keys(sample_keys(key, torch.as_tensor(known, dtype=torch.int64, device="cpu")), length * 2 + 2)
        return [TASKS[task](numbers, length, symbols) for numbers in keys.tolist()]


def _sequence(numbers: Sequence[int], length: int, symbols: int) -> str:
    return "".join(_LETTERS[number % symbols] for number in numbers[:length])


def _changed(answer: str, where: int, what: int, alphabet: str) -> str:
    """Return the answer with one symbol replaced by another one of the alphabet."""
    place = where % len(answer)
    others = [each for each in alphabet if each != answer[place]]
    return answer[:place] + others[what % len(others)] + answer[place + 1 :]


def _reverse(numbers: Sequence[int], length: int, symbols: int) -> Row:
    text = _sequence(numbers, length, symbols)
    answer = text[::-1]
    return Row(f"reverse {text}=", answer, _changed(answer, numbers[-2], numbers[-1], _LETTERS[:symbols]))


def _sort(numbers: Sequence[int], length: int, symbols: int) -> Row:
    text = _sequence(numbers, length, symbols)
    answer = "".join(sorted(text))
    return Row(f"sort {text}=", answer, _changed(answer, numbers[-2], numbers[-1], _LETTERS[:symbols]))


def _arithmetic(numbers: Sequence[int], length: int, _symbols: int) -> Row:
    left, right = (number % 10**length for number in numbers[:2])
    answer = str(left + right)
    return Row(f"{left}+{right}=", answer, _changed(answer, numbers[-2], numbers[-1], "0123456789"))


TASKS: dict[str, Callable[[Sequence[int], int, int], Row]] = {
    "reverse": _reverse,
    "sort": _sort,
    "arithmetic": _arithmetic,
}


def exact_match(_prompts: Sequence[str], completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return 1 for each completion that is the right answer, else 0."""
    return [float(text == row["answer"]) for text, row in zip(completions, rows, strict=True)]


def shaped(_prompts: Sequence[str], completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the share of right characters, half of it for a wrong answer: a gradient before the first exact match."""
    rewards = []
    for text, row in zip(completions, rows, strict=True):
        answer = row["answer"]
        right = sum(found == wanted for found, wanted in zip(text, answer, strict=False))
        share = right / max(len(text), len(answer))
        rewards.append(share if text == answer else share / 2)
    return rewards
