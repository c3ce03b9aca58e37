"""Texts as tokens of any tokenizer of `transformers`, and a tokenizer of characters for models without a folder."""

import string
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchyard_trainers.core.data.rows import BadRecordError
from torchyard_trainers.core.exits import ConfigError

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
# A line for each turn; the end token ends those of the assistant. Calls of tools are objects of JSON.
CHAT_TEMPLATE = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}"
    '<call>{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}'
    "{% endfor %}{{ eos_token if message.role == 'assistant' else '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def encoded(tokenizer: Any, text: str, field: str, **options: Any) -> Any:
    """Return what a tokenizer makes of a text, without special tokens.

    Args:
        tokenizer: of transformers.
        text: to encode.
        field: that has the text, for messages.
        options: of the tokenizer, such as `return_offsets_mapping`.

    Raises:
        BadRecordError: the tokenizer has no token for a part of the text, and none for what it does not know.
    """
    try:
        return tokenizer(text, add_special_tokens=False, **options)
    except Exception as error:  # the library raises Exception itself
        raise BadRecordError(field, f"cannot be encoded by the tokenizer of the model: {error}") from error


def prefix_of(tokenizer: Any) -> list[int]:
    """Return the tokens that a tokenizer puts before every text: for many families `bos_token`, for others none."""
    empty: list[int] = tokenizer("")["input_ids"]
    try:
        plain, whole = (tokenizer("a", add_special_tokens=each)["input_ids"] for each in (False, True))
    except Exception:  # noqa: BLE001 - it has no token for this letter
        plain, whole = [], empty
    if not plain:  # what stands before a text cannot be told from what stands behind it
        return empty if empty == [tokenizer.bos_token_id] else []
    return next((whole[:at] for at in range(len(whole)) if whole[at : at + len(plain)] == plain), [])


def begun(tokenizer: Any, tokens: Sequence[int], prefix: Sequence[int]) -> list[int]:
    """Return the tokens of a text behind `prefix_of` its tokenizer, unless the text has it already.

    A text that was rendered by a chat template begins with `bos_token`.
    """
    has = list(tokens[: len(prefix)]) == list(prefix) or (tokens[:1] == [tokenizer.bos_token_id] and prefix)
    return list(tokens) if has else [*prefix, *tokens]


def ended(tokenizer: Any, tokens: Sequence[int]) -> list[int]:
    """Return the tokens of a text with `eos_token` behind them, unless nothing but space follows the one it has."""
    last = next((each for each in reversed(tokens) if tokenizer.decode([each]).strip()), None)
    return list(tokens) if last == tokenizer.eos_token_id else [*tokens, tokenizer.eos_token_id]


def hidden_tokens(tokenizer: Any) -> set[int]:
    """Return the tokens that the text of a completion is without."""
    marked = {number for number, each in tokenizer.added_tokens_decoder.items() if each.special}
    return marked | set(tokenizer.all_special_ids)


def stop_tokens(tokenizer: Any, stops: Sequence[str]) -> tuple[int, ...]:
    """Return the tokens among texts at which completions stop: those that the text of a completion does not show.

    Raises:
        ConfigError: a text has such a token besides other text, so it never occurs.
    """
    hidden, found = hidden_tokens(tokenizer), []
    for stop in stops:
        try:
            tokens = encoded(tokenizer, stop.strip(), "stop")["input_ids"]
        except BadRecordError:
            continue
        if tokens[:1] and tokens[0] in hidden:
            found.append(tokens[0])
        elif inside := [each for each in tokens if each in hidden]:
            name = tokenizer.convert_ids_to_tokens(inside[0])
            raise ConfigError(
                f"trainer.params.stop: {stop!r} has the special token {name!r} behind other text, and completions are "
                "searched without special tokens; write the token by itself"
            )
    return tuple(found)


def check_known(tokenizer: Any, tokens: Sequence[int], known: int, field: str) -> None:
    """Check that the model has all tokens of a text; tokenizers that families share may have more.

    Raises:
        BadRecordError: the model lacks one.
    """
    if (highest := max(tokens, default=0)) >= known:
        raise BadRecordError(
            field,
            f"has the token {tokenizer.convert_ids_to_tokens(highest)!r}, number {highest}, but the model knows "
            f"{known} tokens only; remove it",
        )


def character_tokenizer() -> Any:
    """Return a tokenizer with a token for each printable ASCII character.

    `save_pretrained` writes a folder that `AutoTokenizer.from_pretrained` loads.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {text: index for index, text in enumerate((PAD, BOS, EOS, UNKNOWN, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def saved(tokenizer: Any) -> dict[str, Path | str]:
    """Return the files that a tokenizer is saved as, as text by name."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        # Beside tokenizer.json some classes write their model of another library, which is no text.
        files = [path for path in sorted(Path(folder).rglob("*")) if path.suffix in (".json", ".jinja", ".txt")]
        return {path.relative_to(folder).as_posix(): path.read_text() for path in files}
