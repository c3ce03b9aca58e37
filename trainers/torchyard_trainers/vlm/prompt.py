"""What the language model reads around an image, and the tokens that are actions.

By the tokenizer of a pretrained model, or by words for a model with random weights.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.tokenizer_file import TOKENIZER, WORDS, read_tokenizer_file, read_words

FIRST = 1  # token of the first word; 0 is padding
FIELD = "trainer.params.pretrained"
# The chat template of Qwen with an image in the user's turn.
_SYSTEM = "<|im_start|>system\nYou control the gripper of a robot.<|im_end|>\n<|im_start|>user\n"
_TURN = "<|im_end|>\n<|im_start|>assistant\n"
_WORD = re.compile(r"\w+|[^\w\s]")


class Prompt(NamedTuple):
    """Tokens before the image, after it, and of the actions; files that encode them again.

    The tokens before the image end with the one that begins an image; those after it begin with the one that ends it.
    """

    before: list[int]
    after: list[int]
    actions: list[int]
    assets: Mapping[str, Path | str]


def make_prompt(
    config: Any, instruction: str, actions: Sequence[str], *, style: str, folder: Path | None = None
) -> Prompt:
    """Encode a prompt.

    Args:
        config: of the model, which names the tokens around an image.
        instruction: of the environment.
        actions: their names, in order.
        style: `task`, only the instruction; `chat`, the chat template of Qwen with the names of the actions.
        folder: of a pretrained model, whose tokenizer counts if it has one.

    Raises:
        ConfigError: the tokenizer is damaged, two actions begin with the same token, or there are too few tokens.
    """
    question = f"The task is to {instruction}. Answer with one of: {', '.join(actions)}."
    before, after = (_SYSTEM, question + _TURN) if style == "chat" else ("", instruction)
    encode, assets = _encoder([*actions, before, after], folder)
    chosen = [encode(action)[0] for action in actions]
    if len(set(chosen)) < len(chosen):
        raise ConfigError(
            f"{FIELD}: two of the actions {', '.join(actions)} begin with the same token of {folder}; rename actions"
        )
    prompt = Prompt(
        [*encode(before), config.vision_start_token_id], [config.vision_end_token_id, *encode(after)], chosen, assets
    )
    words = config.text_config.vocab_size
    highest = max(*prompt.before, *prompt.after, *prompt.actions)
    if highest >= words:
        raise ConfigError(f"trainer.params.model: has {words} tokens, but the prompt needs {highest + 1}")
    return prompt


def _encoder(texts: Sequence[str], folder: Path | None) -> tuple[Any, Mapping[str, Path | str]]:
    """Return a function from text to tokens, and the files that it follows from."""
    if folder is not None and (folder / TOKENIZER).is_file():
        return _by_tokenizer(folder), {TOKENIZER: folder / TOKENIZER}
    if folder is not None and (folder / WORDS).is_file():  # an export of this workload
        words = read_words(folder, FIELD)
    else:
        words = list(dict.fromkeys(word for text in texts for word in split_words(text)))
    numbers = {word: FIRST + place for place, word in enumerate(words)}

    def encode(text: str) -> list[int]:
        unknown = [word for word in split_words(text) if word not in numbers]
        if unknown:
            raise ConfigError(
                f"{FIELD}: {folder}/{WORDS} lacks {unknown[0]!r}; use a model that was trained in this environment, or "
                "one with a tokenizer.json"
            )
        return [numbers[word] for word in split_words(text)]

    return encode, {WORDS: "".join(f"{word}\n" for word in words)}


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in small letters."""
    return _WORD.findall(text.lower())


def _by_tokenizer(folder: Path) -> Any:
    tokenizer = read_tokenizer_file(folder, FIELD)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
