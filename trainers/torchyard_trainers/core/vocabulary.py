"""What encodes the texts of a run: a tokenizer of others, or the words of an export that has none."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.model_config import read_object
from torchyard_trainers.core.tokenizer_file import TOKENIZER, WORDS, read_tokenizer_file, read_words

PRETRAINED, FIELD = "trainer.params.pretrained", "trainer.params.tokenizer"
# Files of a tokenizer in another form than `tokenizer.json`.
_OTHER_FORMS = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_PREPROCESSOR = "policy_preprocessor.json"


class Vocabulary(NamedTuple):
    """A tokenizer, or words; exactly one of them is set.

    Attributes:
        at: field and folder, which an error begins with.
        file: of the tokenizer.
        tokenizer: a `tokenizers.Tokenizer`.
        words: in the order of their numbers.
    """

    at: str
    file: Path | None = None
    tokenizer: Any = None
    words: list[str] | None = None

    def assets(self) -> Mapping[str, Path | str]:
        """Return the file that an export contains, so that it encodes texts again."""
        if self.file is not None:
            return {TOKENIZER: self.file}
        assert self.words is not None
        return {WORDS: "".join(f"{word}\n" for word in self.words)}

    def check_fits(self, known: int) -> None:
        """Check that a model of `known` tokens has all of the tokenizer, but for added ones that no text needs.

        Raises:
            ConfigError: naming the largest token.
        """
        if self.tokenizer is None:
            return
        added = self.tokenizer.get_added_tokens_decoder()
        if beyond := tokens_beyond(self.tokenizer.get_vocab(), known) - added.keys():
            raise ConfigError(
                f"{self.at}: the tokenizer has tokens up to number {max(beyond)}, but the model knows {known}; both "
                "must be of the same model"
            )

    def check_special(self, special: Mapping[str, int]) -> None:
        """Check that tokens have the numbers that the model's config gives them.

        Raises:
            ConfigError: naming a token that is missing or has another number.
        """
        for token, number in special.items() if self.tokenizer is not None else ():
            if (own := self.tokenizer.token_to_id(token)) != number:
                has = "no such token" if own is None else f"number {own}"
                raise ConfigError(
                    f"{self.at}: {token} is number {number} in the model's config.json, but the tokenizer has {has}; "
                    "both must be of the same model"
                )


def open_vocabulary(pretrained: Path | None, tokenizer: Path | None, *, source: str) -> Vocabulary | None:
    """Return the vocabulary of a model; None if it has random weights and no tokenizer is named.

    A model that was trained with a tokenizer has learned nothing about any other numbers of words.

    Args:
        pretrained: folder of the model; None: random weights.
        tokenizer: folder of the tokenizer; None: it is in the folder of the model.
        source: where the tokenizer of such a model is published.

    Raises:
        ConfigError: a tokenizer is missing, contradicts the words of the model, or cannot be used.
    """
    if tokenizer is not None:
        if pretrained is not None and (pretrained / WORDS).is_file():
            raise ConfigError(
                f"{FIELD}: {tokenizer}, but {pretrained} was trained with the words of its {WORDS}; remove one"
            )
        if not (tokenizer / TOKENIZER).is_file():
            raise ConfigError(f"{FIELD}: {tokenizer} has no {TOKENIZER}{_other_form(tokenizer)}")
        return _by_tokenizer(tokenizer, FIELD)
    if pretrained is None:
        return None
    if (pretrained / TOKENIZER).is_file():
        return _by_tokenizer(pretrained, PRETRAINED)
    if (pretrained / WORDS).is_file():  # an export of a model that had random weights
        return Vocabulary(f"{PRETRAINED}: {pretrained}", words=read_words(pretrained, PRETRAINED))
    raise ConfigError(
        f"{PRETRAINED}: {pretrained} has no {TOKENIZER}, without which the model understands no instruction"
        f"{_other_form(pretrained)}; copy that of {_named(pretrained) or source} into it, or set {FIELD} to its folder"
    )


def tokens_beyond(vocabulary: Mapping[str, int], known: int) -> set[int]:
    """Return the numbers of a vocabulary that a model of `known` tokens does not have."""
    return {number for number in vocabulary.values() if number >= known}


def _by_tokenizer(folder: Path, field: str) -> Vocabulary:
    return Vocabulary(f"{field}: {folder}", folder / TOKENIZER, read_tokenizer_file(folder, field))


def _other_form(folder: Path) -> str:
    """Return how to convert a tokenizer that a folder has in another form."""
    other = next((name for name in _OTHER_FORMS if (folder / name).is_file()), None)
    if other is None:
        return ""
    return (
        f" (it has {other}: convert that by AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of "
        "transformers)"
    )


def _named(folder: Path) -> str:
    """Return the tokenizer that a policy of LeRobot names; "" if it names none."""
    path = folder / _PREPROCESSOR
    if not path.is_file():
        return ""
    steps = read_object(path, f"{PRETRAINED}: {path}", "a preprocessor of LeRobot").get("steps")
    for step in steps if isinstance(steps, list) else ():
        config = step.get("config") if isinstance(step, dict) else None
        name = config.get("tokenizer_name") if isinstance(config, dict) else None
        if isinstance(name, str):
            return name[:100]
    return ""
