"""Small tokenizers that treat space and special tokens as those of published models do."""

from collections.abc import Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def byte_level(special, template=None, *, eos="<eos>"):
    """Return a tokenizer of bytes, as GPT-2's, with special tokens; a line feed and one before a space are tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ċ", "Ċ"), ("Ġ", "y")]
    vocabulary = {text: number for number, text in enumerate([*alphabet, *map("".join, merges)])}
    plain = Tokenizer(models.BPE(vocabulary, merges))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    return _with(plain, special, template, eos)


def metaspace(special, template=None, *, eos="<eos>"):
    """Return a tokenizer of characters that writes a space as a mark, as those of sentencepiece."""
    letters = [chr(code) for code in range(33, 127)] + ["▁", "\n", "▁y"]
    vocabulary = {text: number for number, text in enumerate(letters)}
    plain = Tokenizer(models.BPE(vocabulary, [("▁", "y")]))
    plain.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    plain.decoder = decoders.Metaspace(prepend_scheme="first")
    return _with(plain, special, template, eos)


def _with(plain, special, template, eos):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token="<bos>", eos_token=eos, pad_token="<pad>", chat_template=template
    )
    added = [each if isinstance(each, AddedToken) else AddedToken(each, special=True) for each in special]
    tokenizer.add_tokens(added, special_tokens=True)
    return tokenizer


def shown(tokenizer, tokens, learned):
    """Return the text of tokens, what is learned in brackets."""
    text, inside = "", False
    for token, counts in zip(tokens, learned, strict=True):
        text += ("[" if counts and not inside else "]" if inside and not counts else "") + tokenizer.decode([token])
        inside = counts
    return text + ("]" if inside else "")


def write_tokenizer(folder: Path, numbers: Mapping[str, int]) -> None:
    """Write a `tokenizer.json` of words by their numbers; one of them is `[unk]`."""
    tokenizer = Tokenizer(models.WordLevel(dict(numbers), unk_token="[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
