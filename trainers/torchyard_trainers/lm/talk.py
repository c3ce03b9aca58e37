"""`python -m torchyard_trainers chat`: answers to conversations, token by token, for `torchyard chat`.

A request is a line of JSON on stdin: `{"messages": [...]}`, or `{"text": "..."}` to continue a text as it is. The reply
is a line for each piece of text on stdout, `{"piece": "..."}`, and then `{"end": true, "stopped": ..., "tokens": ...}`.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import torch

from torchyard_trainers import registry
from torchyard_trainers.core import config as configuration
from torchyard_trainers.core.config import Config
from torchyard_trainers.core.data.rows import BadRecordError
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.loop import Run
from torchyard_trainers.core.modes.load import load_chosen
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.worker import open_session
from torchyard_trainers.core.world import join
from torchyard_trainers.lm.chat import Chat, conversation
from torchyard_trainers.lm.folder import check_family, read_config, read_tokenizer
from torchyard_trainers.lm.generation import Sampling, WeightsEngine
from torchyard_trainers.lm.models import LanguageModel
from torchyard_trainers.lm.params import without_data


class Speaker(NamedTuple):
    """A model that talks, with its tokenizer."""

    model: LanguageModel
    tokenizer: Any
    device: torch.device


def answer(path: Path, device: str, sampling: Sampling, requests: IO[str], replies: IO[str]) -> None:
    """Answer requests until there are no more.

    Args:
        path: a Hugging Face folder, also of adapters, or the checkpoint folder of a run of `lm`.
        device: `auto`, `cuda` or `cpu`.
        sampling: how to choose tokens.
        requests: lines of JSON.
        replies: lines of JSON.

    Raises:
        ConfigError: the folder holds no such model.
        CheckpointError: there is no checkpoint.
    """
    speaker = open_speaker(path, device)
    _write(replies, {"ready": True, "template": bool(speaker.tokenizer.chat_template)})
    for number, line in enumerate(requests):
        request = json.loads(line)
        try:
            for reply in _replies(speaker, request, sampling._replace(seed=sampling.seed + number)):
                _write(replies, reply)
        except BadRecordError as error:
            _write(replies, {"error": str(error)})


def open_speaker(path: Path, device: str) -> Speaker:
    """Load a model; see `answer`."""
    if (path / "run.json").is_file():
        return _of_checkpoint(path, device)
    with join(device, needs_group=False) as world:
        target = world.device
    if (path / "adapter_config.json").is_file():
        return _with_adapters(path, target)
    return _of_folder(path, target)


def _of_folder(path: Path, device: torch.device) -> Speaker:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    read_config(path)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    try:
        lm = AutoModelForCausalLM.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=dtype
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"{path}: the weights cannot be read: {error}") from error
    check_family(lm, path)
    return Speaker(LanguageModel(lm.to(device)).eval(), read_tokenizer(path), device)


def _with_adapters(path: Path, device: torch.device) -> Speaker:
    from peft import PeftModel

    try:
        base = json.loads((path / "adapter_config.json").read_text())["base_model_name_or_path"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}/adapter_config.json names no base model: {error!r}") from error
    if not isinstance(base, str) or not (Path(base) / "config.json").is_file():
        raise ConfigError(
            f"{path}: the adapters belong to {base}, which is not a folder here; copy it there, or export hf-merged"
        )
    speaker = _of_folder(Path(base), device)
    speaker.model.lm = PeftModel.from_pretrained(speaker.model.lm, path, use_safetensors=True).merge_and_unload()
    return speaker


def _of_checkpoint(path: Path, device: str) -> Speaker:
    """Load the newest checkpoint of a run with the config that it was made with."""
    try:
        tree = json.loads((path / "run.json").read_text())["config"]
        config = msgspec.convert(tree, Config, strict=False)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}/run.json is not that of a run: {error}") from error
    if config.trainer.name != "lm":
        raise ConfigError(f"{path}: its workload is {config.trainer.name}, which does not talk; name a job of lm")
    trainer = msgspec.structs.replace(config.trainer, params=without_data(config.trainer.params))
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
        return Speaker(model, work.tokenizer, world.device)


def _replies(speaker: Speaker, request: dict[str, Any], sampling: Sampling) -> Iterator[dict[str, Any]]:
    tokenizer = speaker.tokenizer
    if "text" in request:
        tokens: Sequence[int] = tokenizer(request["text"])["input_ids"]
    else:
        chat = Chat(tokenizer)
        chat.check()
        _, tokens = chat.prompt(conversation(request["messages"], "messages"))
    if not tokens:
        raise BadRecordError("text", "is empty")
    ends = {tokenizer.eos_token_id}
    configured = speaker.model.lm.generation_config.eos_token_id
    ends |= set(configured if isinstance(configured, list) else [configured]) - {None}
    engine = WeightsEngine(speaker.model, speaker.model.lm.config, device=speaker.device)
    said: list[int] = []
    shown, stopped = "", False
    for token in engine.stream(tokens, sampling._replace(stop_tokens=tuple(sorted(ends)))):
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
