"""A Hugging Face folder of a causal language model: its config, its tokenizer, and a model without weights."""

from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.image_processor import PROCESSOR_FILES
from torchyard_trainers.core.model_config import (
    MAX_CONFIG_BYTES,
    build_of,
    one_line,
    read_config_json,
    read_object,
)
from torchyard_trainers.core.pretrained import INDEX
from torchyard_trainers.core.tokenizer_file import (
    MAX_TOKENIZER_BYTES,
    TOKENIZER,
    check_growth,
    check_tokenizer_file,
)
from torchyard_trainers.core.vision_language import FAMILIES
from torchyard_trainers.core.vocabulary import tokens_beyond
from torchyard_trainers.lm.models import LanguageModel, decoder_of

FIELD = "trainer.params.pretrained"
# Whatever a tokenizer of transformers is saved as; an export holds the same files.
TOKENIZER_FILES = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)

_COPY_TOKENIZER = "copy the tokenizer.json of the model into it, or name its folder in trainer.params.tokenizer"
GENERATION = "generation_config.json"

TEMPLATES = "additional_chat_templates"
WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"})  # never read here

MAX_TEMPLATE_BYTES = 1 << 20
# Settings of a tokenizer with all added tokens that it may have.
MAX_SETTINGS_BYTES = 16 << 20
# What forward passes of a base model are called with.
_NEEDED = ("attention_mask", "position_ids", "past_key_values")


def read_config(folder: Path) -> Any:
    """Return the config of a model.

    Raises:
        ConfigError: there is none, or not one of a causal language model with plain weights.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    tree, at = read_config_json(folder, FIELD)
    kind = tree.get("model_type")
    known = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *FAMILIES}
    if not isinstance(kind, str) or kind not in known:
        raise ConfigError(
            f"{at} has model_type {kind!r}, which transformers does not know as a causal language model; code inside "
            "a folder is never run"
        )
    if tree.get("quantization_config") is not None:
        raise ConfigError(f"{at} describes quantized weights; name a folder with float32, bfloat16 or float16 weights")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the classes of the families raise anything
        raise ConfigError(f"{at} is not a config of a model: {one_line(error)}") from error


def image_token(folder: Path) -> int | None:
    """Return the token that stands for a part of an image; None: the model of the folder reads text only."""
    config = read_config(folder)
    return int(config.image_token_id) if config.model_type in FAMILIES else None


def limits_in(folder: Path) -> tuple[int, int | None]:
    """Return the tokens that the model of a folder knows, and its positions if they are limited."""
    config = read_config(folder).get_text_config()
    return config.vocab_size, getattr(config, "max_position_embeddings", None)


def read_tokenizer(folder: Path, field: str = FIELD) -> Any:
    """Return the tokenizer, with its chat template if it has one.

    Args:
        folder: of a model, or of its tokenizer alone.
        field: of the job that names the folder.

    Raises:
        ConfigError: there is none, it has settings but no vocabulary, or it has no token that ends a text.
    """
    from transformers import AutoTokenizer

    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not files:
        raise ConfigError(f"{field}: {folder} has no tokenizer; {_COPY_TOKENIZER}")
    check_files(folder, field)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the libraries raise anything
        if "custom code" in str(error):
            raise ConfigError(
                f"{field}: the tokenizer of {folder} is code in the folder, which is never run; use a model whose "
                "tokenizer transformers has, or convert it to a tokenizer.json"
            ) from error
        raise ConfigError(
            f"{field}: the tokenizer of {folder} cannot be read: {one_line(error)}; copy its files again, or save it "
            "with save_pretrained of transformers"
        ) from error
    # Of settings alone transformers makes a tokenizer that reads no text at all.
    special = set(tokenizer.all_special_tokens) | tokenizer.get_added_vocab().keys()
    if not tokenizer.get_vocab().keys() - special:
        raise ConfigError(
            f"{field}: {folder} has the settings of a tokenizer ({files[0].name}), but no vocabulary; {_COPY_TOKENIZER}"
        )
    if tokenizer.is_fast:
        check_growth(tokenizer.backend_tokenizer, f"{field}: the tokenizer of {folder}")
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"{field}: the tokenizer of {folder} has no eos_token; set it in tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_files(folder: Path, field: str = FIELD) -> None:
    """Check that the files beside the weights are of bounded size, before any of them is read.

    Raises:
        ConfigError: one is larger than that of any model.
    """
    for path in _read_by_tokenizers(folder):
        check_tokenizer_file(path, f"{field}: {path}", limit=_limit(path))


def _read_by_tokenizers(folder: Path) -> Iterator[Path]:
    """Yield all files that a tokenizer of some class may be read from: all but weights."""
    for place in (folder, folder / TEMPLATES):
        if place.is_dir():
            yield from (path for path in place.iterdir() if path.suffix not in WEIGHTS)


def _limit(path: Path) -> int:
    """Return how many bytes a file beside the weights may have."""
    if path.suffix == ".jinja" or path.name.startswith("chat_template"):
        return MAX_TEMPLATE_BYTES
    if path.name in ("config.json", GENERATION):
        return MAX_CONFIG_BYTES
    if path.suffix == ".json" and path.name not in (TOKENIZER, "vocab.json", INDEX):
        return MAX_SETTINGS_BYTES
    return MAX_TOKENIZER_BYTES


def with_tokens(tokenizer: Any, texts: Sequence[str]) -> range:
    """Add tokens to a tokenizer; return their numbers.

    Raises:
        ConfigError: a text is a token already, or is there twice.
    """
    at, first = "trainer.params.addTokens", len(tokenizer)
    known = tokenizer.get_vocab()
    for number, each in enumerate(texts):
        if each in known or each in texts[:number]:
            raise ConfigError(f"{at}: {each!r} is a token of the tokenizer already, or is there twice; remove it")
        if not each.strip():
            raise ConfigError(f"{at}: {each!r} is white space; remove it")
    tokenizer.add_tokens(list(texts))
    numbers = tokenizer.convert_tokens_to_ids(list(texts))
    assert numbers == list(range(first, first + len(texts))), f"numbers of added tokens: {numbers[:5]}"
    return range(first, first + len(texts))


def empty_model(folder: Path, tokenizer: Any, *, value_head: bool = False, added: range = range(0)) -> LanguageModel:
    """Build the model of a folder; its parameters have no memory inside `core.weights.parameters_on_meta`.

    Args:
        folder: of the model.
        tokenizer: of the model.
        value_head: add one.
        added: tokens of the tokenizer that the folder has no weights for.

    Raises:
        ConfigError: the folder has no such model, or fewer tokens than its tokenizer.
    """
    import transformers
    from transformers import AutoModelForCausalLM, PreTrainedModel

    config = read_config(folder)
    known = config.get_text_config().vocab_size = max(config.get_text_config().vocab_size, added.stop)
    # Families share tokenizers: Gemma 3 without images lacks the token that stands for one. A text that has such a
    # token is a bad record.
    beyond = tokens_beyond(tokenizer.get_vocab(), known)
    if beyond - tokenizer.added_tokens_decoder.keys() or beyond & {tokenizer.eos_token_id, tokenizer.pad_token_id}:
        raise ConfigError(
            f"{FIELD}: the tokenizer of {folder} has tokens up to number {max(beyond)}, but the model knows {known}; "
            "both must be of the same model"
        )

    def build() -> Any:
        if config.model_type in FAMILIES:
            kind: Any = getattr(transformers, FAMILIES[config.model_type][1])
            return kind._from_config(config, dtype=torch.float32)  # noqa: SLF001
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)

    lm: Any = build_of(f"{FIELD}: {folder / 'config.json'}", build)
    check_family(lm, folder)
    for each in lm.modules():
        if isinstance(each, PreTrainedModel):
            # It reads tokens: a GPU would wait for that in each pass, and a forecast make a real step.
            each.warn_if_padding_and_no_attention_mask = lambda *_: None  # type: ignore[method-assign]
    if (folder / GENERATION).is_file():
        lm.generation_config = _generation_config(folder)
    return LanguageModel(lm, value_head=value_head)


def _generation_config(folder: Path) -> Any:
    """Return how the model of a folder generates.

    Raises:
        ConfigError: the file does not say it.
    """
    from transformers import GenerationConfig

    path = folder / GENERATION
    tree = read_object(path, f"{FIELD}: {path}", "a config of generation")
    ends = tree.get("eos_token_id")
    if not all(isinstance(each, int) for each in (ends if isinstance(ends, list) else [ends or 0])):
        raise ConfigError(
            f"{FIELD}: {path}: eos_token_id is {str(ends)[:80]!r}, expected the number of a token, or a list"
        )
    try:
        return GenerationConfig.from_dict(tree)
    except Exception as error:  # the class raises anything
        raise ConfigError(f"{FIELD}: {path} is not a config of generation: {one_line(error)}; copy it again") from error


def check_learns_tokens(lm: Any) -> None:
    """Check that a model with adapters trains the embeddings of tokens, and its output layer.

    Raises:
        ConfigError: one of them is frozen.
    """
    layers = [each for each in (lm.get_input_embeddings(), lm.get_output_embeddings()) if each is not None]
    names = {id(module): name.rpartition(".")[2] for name, module in lm.named_modules()}
    if any(not each.weight.requires_grad for each in layers):
        listed = ", ".join(dict.fromkeys(names[id(each)] for each in layers))
        raise ConfigError(
            f"trainer.params.modulesToSave: leaves out weights of the tokens in addTokens; set it to [{listed}]"
        )


def end_tokens(tokenizer: Any, lm: Any, turns: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the tokens that end what a model says, those that it learns to end with first.

    Args:
        tokenizer: of the model; its `eos_token` ends texts.
        lm: a model of transformers; its config of generation may have others.
        turns: tokens that end its turns in conversations, often others than those of texts, such as `<end_of_turn>`.
    """
    configured = _listed(getattr(getattr(lm, "generation_config", None), "eos_token_id", None))
    return tuple(dict.fromkeys([*turns, tokenizer.eos_token_id, *configured]))


def set_end_tokens(lm: Any, ends: Sequence[int]) -> None:
    """Write the tokens that end what a model says into its configs, for those who generate with its export.

    The config of generation lists all of them. The config of the model, which other programs read as one number, has
    the first one unless it lists that already.
    """
    for config in (lm.config, lm.config.get_text_config()):
        # Models that read images have them in the config of their part that reads text.
        if hasattr(config, "eos_token_id") and ends[0] not in _listed(config.eos_token_id):
            config.eos_token_id = ends[0]
    generation = getattr(lm, "generation_config", None)
    if generation is not None and set(ends) != set(_listed(generation.eos_token_id)):
        generation.eos_token_id = list(ends) if len(ends) > 1 else ends[0]


def _listed(tokens: Any) -> list[int]:
    return [each for each in (tokens if isinstance(tokens, list | tuple) else [tokens]) if each is not None]


def check_family(lm: Any, folder: Path) -> None:
    """Check that the layers of a model take what generation and packing give them.

    Raises:
        ConfigError: they do not.
    """
    taken = signature(decoder_of(lm).forward).parameters
    if lacking := [name for name in _NEEDED if name not in taken]:
        raise ConfigError(
            f"{FIELD}: {folder} is of model_type {lm.config.model_type!r}, which takes no {' and no '.join(lacking)}; "
            "name a model whose layers all attend to keys and values, such as llama, mistral, gemma, qwen or gpt2"
        )


def processor_files(folder: Path) -> dict[str, Path | str]:
    """Return the files that say how images are read, by their path in the folder."""
    names = (*PROCESSOR_FILES, "video_preprocessor_config.json")
    return {name: folder / name for name in names if (folder / name).is_file()}


def tokenizer_files(folder: Path) -> dict[str, Path | str]:
    """Return the files of the tokenizer, by their path in the folder."""
    named = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    templates = sorted((folder / TEMPLATES).glob("*.jinja"))
    return {path.relative_to(folder).as_posix(): path for path in (*named, *templates)}
