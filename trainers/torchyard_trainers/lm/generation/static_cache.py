"""Keys and values of a generation, in memory that is allocated once, where the family of the model allows it."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, StaticCache
from transformers.cache_utils import StaticLayer

# Lengths of caches are multiples of this, so that few shapes occur.
BUCKET = 64
# Families whose layers cut a mask of their own to the length of the cache, as if it had no places for later tokens.
GROWING = frozenset({"gpt_neo"})


class _PromptFirstLayer(StaticLayer):
    """Keys and values of one layer, where the pass over the prompts attends to the prompts only.

    That of transformers attends to all places of the cache, which are empty then. Where prompts differ in length, keys
    and values are repeated for all query heads: of the prompts, not of the whole cache.
    """

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many keys a pass sees, and where they begin."""
        return super().get_mask_sizes(query_length) if self.is_initialized else (query_length, 0)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add keys and values [n, heads, T, d]; return those that the pass sees."""
        first = not self.is_initialized
        every = super().update(key_states, value_states, *args, **kwargs)
        return (key_states, value_states) if first else every


class _OneTypeCache(StaticCache):
    """Keys and values in the precision of the pass: normalised keys are fp32 under autocast, and values are not."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """See `transformers.Cache`."""
        device = key_states.device.type
        if torch.is_autocast_enabled(device):
            kind = torch.get_autocast_dtype(device)
            key_states, value_states = key_states.to(kind), value_states.to(kind)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


def bucketed(length: int) -> int:
    """Return the tokens that the cache of a completion has memory for."""
    return -(-length // BUCKET) * BUCKET


def grows(config: Any) -> bool:
    """Return whether the cache of a model grows with every pass, which then sees the mask of its tokens only."""
    return config.get_text_config().model_type in GROWING


def cache_of(config: Any, length: int) -> Cache:
    """Return an empty cache for at least `length` tokens of a model of transformers."""
    if grows(config):
        return DynamicCache(config=config)
    size = bucketed(length)
    cache = _OneTypeCache(config=config, max_cache_len=size)
    cache.layers = [_PromptFirstLayer(size) if type(each) is StaticLayer else each for each in cache.layers]
    return cache


@torch.no_grad()
def continue_at(cache: Cache, place: Tensor) -> None:
    """Have the next pass write at a place (0 is the first): as a value of a tensor, which a CUDA graph can replay.

    Layers that see a window only count in Python; passes in order need no more.
    """
    for each in cache.layers:
        if isinstance(each, _PromptFirstLayer):
            each.cumulative_length.copy_(place)
