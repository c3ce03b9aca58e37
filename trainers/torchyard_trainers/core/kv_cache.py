"""Keys and values of a prefix that is computed once, for passes that read it with gradients.

A cache of transformers grows with every pass. These do not: the first pass writes them, and each later pass reads the
prefix and forgets its own. A recomputation in the backward pass gets the same again.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

KeysAndValues = list[tuple[Tensor, Tensor]]


def writing(layers: int) -> Cache:
    """Return an empty cache for the pass over a prefix."""
    return Cache(layers=[_WrittenLayer() for _ in range(layers)])


def written(cache: Cache) -> KeysAndValues:
    """Return keys and values of each layer, [m, heads, T, d] each, after the pass over a prefix."""
    return [(layer.keys, layer.values) for layer in cache.layers]


def reading(found: KeysAndValues) -> Cache:
    """Return a cache for one pass after a prefix; a prefix of one sample serves all samples of the pass."""
    layers = []
    for keys, values in found:
        layer = _ReadLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        layers.append(layer)
    return Cache(layers=layers)


def hand_out_layers(layers: Iterable[nn.Module]) -> None:
    """Hand each layer of a model its own layer of a cache instead of the cache.

    A layer that looks itself up in a cache is compiled once for each place in the model, as its number is then part of
    the code.
    """
    for place, layer in enumerate(layers):
        layer.register_forward_pre_hook(partial(_with_own_layer, place), with_kwargs=True)


def _with_own_layer(
    place: int, _module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    cache = named.get("past_key_values")
    return (inputs, {**named, "past_key_values": cache.layers[place]}) if isinstance(cache, Cache) else None


class _WrittenLayer(DynamicLayer):
    """Keys and values of the first pass; a recomputation in the backward pass gets its own again."""

    def update(self, key_states: Tensor, value_states: Tensor, *_more: Any, **_named: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
        return key_states, value_states


class _ReadLayer(DynamicLayer):
    """Keys and values of the prefix, followed by those of the pass, which are not kept."""

    def update(self, key_states: Tensor, value_states: Tensor, *_more: Any, **_named: Any) -> tuple[Tensor, Tensor]:
        many = len(key_states)
        keys, values = (each.expand(many, *each.shape[1:]) for each in (self.keys, self.values))
        return torch.cat([keys, key_states], -2), torch.cat([values, value_states], -2)
