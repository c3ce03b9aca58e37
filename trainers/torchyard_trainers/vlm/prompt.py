"""What the language model reads around an image, and the tokens that are actions.

By the tokenizer of a pretrained model, or by words for a model with random weights.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.tokenizer_file import WORDS
from torchyard_trainers.core.vocabulary import Vocabulary

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
    config: Any, instruction: str, actions: Sequence[str], *, style: str, vocabulary: Vocabulary | None = None
) -> Prompt:
    """Encode a prompt.

    Args:
        config: of the model, which names the tokens around an image.
        instruction: of the environment.
        actions: their names, in order.
        style: `task`, only the instruction; `chat`, the chat template of Qwen with the names of the actions.
        vocabulary: of a pretrained model, or a tokenizer; None: the words of the prompt.

    Raises:
        ConfigError: the tokenizer is that of another model, two actions begin with the same token, or there are too
            few tokens.
    """
    question = f"The task is to {instruction}. Answer with one of: {', '.join(actions)}."
    before, after = (_SYSTEM, question + _TURN) if style == "chat" else ("", instruction)
    if vocabulary is None:
        words = dict.fromkeys(word for text in (*actions, before, after) for word in split_words(text))
        vocabulary = Vocabulary("", words=list(words))
    known = config.text_config.vocab_size
    vocabulary.check_fits(known)
    vocabulary.check_special(
        {"<|vision_start|>": config.vision_start_token_id, "<|vision_end|>": config.vision_end_token_id}
    )
    if style == "chat" and vocabulary.tokenizer is not None:
        _check_turns(vocabulary)
    encode = _encoder(vocabulary)
    chosen = [encode(action)[0] for action in actions]
    if len(set(chosen)) < len(chosen):
        raise ConfigError(
            f"{vocabulary.at}: two of the actions {', '.join(actions)} begin with the same token; rename actions"
        )
    prompt = Prompt(
        [*encode(before), config.vision_start_token_id],
        [config.vision_end_token_id, *encode(after)],
        chosen,
        vocabulary.assets(),
    )
    highest = max(*prompt.before, *prompt.after, *prompt.actions)
    if highest >= known:
        raise ConfigError(f"trainer.params.model: has {known} tokens, but the prompt needs {highest + 1}")
    return prompt


def _check_turns(vocabulary: Vocabulary) -> None:
    """Check that the tokenizer has the tokens of Qwen's chat template, which would else be read letter by letter.

    Raises:
        ConfigError: it lacks one.
    """
    for token in ("<|im_start|>", "<|im_end|>"):
        if vocabulary.tokenizer.token_to_id(token) is None:
            raise ConfigError(
                f"trainer.params.prompt: chat is the template of Qwen, but {vocabulary.at} has no token {token}; use "
                "prompt: task"
            )


def _encoder(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    """Return a function from text to tokens."""
    tokenizer = vocabulary.tokenizer
    if tokenizer is not None:
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids  # type: ignore[no-any-return]
    assert vocabulary.words is not None
    numbers = {word: FIRST + place for place, word in enumerate(vocabulary.words)}

    def encode(text: str) -> list[int]:
        unknown = [word for word in split_words(text) if word not in numbers]
        if unknown:
            raise ConfigError(
                f"{vocabulary.at}/{WORDS} lacks {unknown[0]!r}; use a model that was trained in this environment, or "
                "one with a tokenizer.json"
            )
        return [numbers[word] for word in split_words(text)]

    return encode


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in small letters."""
    return _WORD.findall(text.lower())
