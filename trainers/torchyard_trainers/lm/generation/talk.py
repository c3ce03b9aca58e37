"""`python -m torchyard_trainers chat`: answers to conversations, token by token, for `torchyard chat`.

A request is a line of JSON on stdin: `{"messages": [...]}`, or `{"text": "..."}` to continue a text as it is. The reply
is a line for each piece of text on stdout, `{"piece": "..."}`, and then `{"end": true, "stopped": ..., "tokens": ...}`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import msgspec
import torch

from torchyard_trainers import registry
from torchyard_trainers.core import config as configuration
from torchyard_trainers.core.adapters import ADAPTERS, merged_with, saved_lora
from torchyard_trainers.core.config import Config
from torchyard_trainers.core.data.rows import BadRecordError
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.loop import Run
from torchyard_trainers.core.model_config import read_object
from torchyard_trainers.core.modes.load import load_chosen
from torchyard_trainers.core.pretrained import Pretrained, check_holds, stream
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.weights import allocate, parameters_on_meta
from torchyard_trainers.core.worker import open_session
from torchyard_trainers.core.world import World, join
from torchyard_trainers.lm.agreement import cache_problem
from torchyard_trainers.lm.chat.chat import Chat
from torchyard_trainers.lm.chat.messages import conversation
from torchyard_trainers.lm.folder import TOKENIZER_FILES, empty_model, end_tokens, read_config, read_tokenizer
from torchyard_trainers.lm.generation.engine import Sampling, WeightsEngine
from torchyard_trainers.lm.models import LanguageModel
from torchyard_trainers.lm.params import without_data
from torchyard_trainers.lm.tokens import begun, check_known, encoded, prefix_of


class Speaker(NamedTuple):
    """A model that talks, with its tokenizer."""

    model: LanguageModel
    tokenizer: Any
    device: torch.device
    template_arguments: Mapping[str, Any] = MappingProxyType({})  # that the run has trained with


def answer(
    path: Path,
    device: str,
    sampling: Sampling,
    requests: IO[str],
    replies: IO[str],
    *,
    template_arguments: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Answer requests until there are no more.

    Args:
        path: a Hugging Face folder, also of adapters, or the checkpoint folder of a run of `lm`.
        device: `auto`, `cuda` or `cpu`.
        sampling: how to choose tokens.
        requests: lines of JSON.
        replies: lines of JSON.
        template_arguments: of the chat template, beside those of the run.

    Raises:
        ConfigError: the folder holds no such model.
        CheckpointError: there is no checkpoint.
    """
    speaker = open_speaker(path, device)
    dtype = next(speaker.model.parameters()).dtype
    if (problem := cache_problem(speaker.model, speaker.device, dtype=dtype)) is not None:
        raise ConfigError(f"{path} cannot answer: {problem}; use another model")
    chat = Chat(speaker.tokenizer, arguments={**speaker.template_arguments, **template_arguments})
    _write(replies, {"ready": True, "template": bool(speaker.tokenizer.chat_template)})
    for number, line in enumerate(requests):
        request = json.loads(line)
        try:
            for reply in _replies(speaker, chat, request, sampling._replace(seed=sampling.seed + number)):
                _write(replies, reply)
        except BadRecordError as error:
            _write(replies, {"error": str(error)})


def open_speaker(path: Path, device: str) -> Speaker:
    """Load a model; see `answer`."""
    if (path / "run.json").is_file():
        return _of_checkpoint(path, device)
    with join(device, needs_group=False) as world:
        return _with_adapters(path, world) if (path / ADAPTERS).is_file() else _of_folder(path, world)


def _of_folder(path: Path, world: World) -> Speaker:
    read_config(path)
    tokenizer = read_tokenizer(path)
    with parameters_on_meta():
        model = empty_model(path, tokenizer)
    pretrained = Pretrained(path, prefix="lm.", converts=True)
    check_holds(pretrained, model)
    if world.device.type == "cuda":
        for each in model.parameters():
            each.data = each.data.to(torch.bfloat16)
    allocate(model, world.device)
    stream(pretrained, model, world)
    return Speaker(model.eval(), tokenizer, world.device)


def _with_adapters(path: Path, world: World) -> Speaker:
    at = f"{path / ADAPTERS}"
    tree = read_object(path / ADAPTERS, at, "a config of adapters")
    base = tree.get("base_model_name_or_path")
    if not isinstance(base, str) or not (Path(base) / "config.json").is_file():
        raise ConfigError(
            f"{path}: the adapters belong to {str(base)[:200]}, which is not a folder here; copy it there, or export "
            "hf-merged"
        )
    adapters = saved_lora(path, tree, at)
    speaker = _of_folder(Path(base), world)
    speaker.model.lm = merged_with(speaker.model.lm, adapters)
    # Tokens may have been added.
    own = any((path / name).is_file() for name in TOKENIZER_FILES)
    return speaker._replace(tokenizer=read_tokenizer(path)) if own else speaker


def _of_checkpoint(path: Path, device: str) -> Speaker:
    """Load the newest checkpoint of a run with the config that it was made with."""
    at = f"{path}/run.json"
    tree = read_object(path / "run.json", at, "that of a run")
    try:
        config = msgspec.convert(tree["config"], Config, strict=False)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{at} is not that of a run: {error}") from error
    if config.trainer.name != "lm":
        raise ConfigError(f"{path}: its workload is {config.trainer.name}, which does not talk; name a job of lm")
    given = config.trainer.params.get("templateArguments") or {}
    params = without_data(config.trainer.params)
    if isinstance(base := params.get("pretrained"), str):  # relative to where the run trained
        params["pretrained"] = str(Path(str(tree.get("workingDir", "."))) / base)
    trainer = msgspec.structs.replace(config.trainer, params=params)
    settings = configuration.Parallelism(strategy="single", precision="auto")
    checkpoint = msgspec.structs.replace(config.checkpoint, resume_from=None)
    config = msgspec.structs.replace(
        config, trainer=trainer, parallelism=settings, checkpoint=checkpoint, device=device
    )
    work = registry.build(config)
    with join(config.device, needs_group=False) as world:
        reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
        run = Run(config, world, reporter, path, run_dir=None, round_number=None, job_uid="")
        session = open_session(work, run, "single", None)
        load_chosen(work, session, run)
        model = session.parallel.module.eval()
        assert isinstance(model, LanguageModel)
        return Speaker(model, work.tokenizer, world.device, given)


def _replies(speaker: Speaker, chat: Chat, request: dict[str, Any], sampling: Sampling) -> Iterator[dict[str, Any]]:
    tokenizer = speaker.tokenizer
    if "text" in request:
        text = encoded(tokenizer, request["text"], "text")["input_ids"]
        tokens: Sequence[int] = begun(tokenizer, text, prefix_of(tokenizer))
    else:
        chat.check()
        _, tokens = chat.prompt(conversation(request["messages"], "messages"))
    if not tokens:
        raise BadRecordError("text", "is empty")
    field, config = "text" if "text" in request else "messages", speaker.model.lm.config.get_text_config()
    check_known(tokenizer, tokens, config.vocab_size, field)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and len(tokens) >= positions:
        raise BadRecordError(
            field,
            f"has {len(tokens)} tokens, but the model has {positions} positions, of which the answer needs some; "
            "shorten it, or begin a new conversation",
        )
    ends = end_tokens(tokenizer, speaker.model.lm, () if "text" in request else chat.end_tokens)
    engine = WeightsEngine(speaker.model, speaker.model.lm.config, device=speaker.device)
    said: list[int] = []
    shown, stopped = "", False
    for token in engine.stream(tokens, sampling._replace(stop_tokens=ends)):
        stopped = token in ends
        if stopped:
            break
        said.append(token)
        text = tokenizer.decode(said, skip_special_tokens=True)
        # The bytes of a character may be several tokens: it is shown when it is whole.
        if not text.endswith("\ufffd") and len(text) > len(shown):
            yield {"piece": text[len(shown) :]}
            shown = text
    text = tokenizer.decode(said, skip_special_tokens=True)
    if len(text) > len(shown):
        yield {"piece": text[len(shown) :]}
    yield {"end": True, "stopped": stopped, "tokens": len(said)}


def _write(replies: IO[str], value: dict[str, Any]) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()
