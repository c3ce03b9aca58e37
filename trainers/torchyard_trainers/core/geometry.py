"""Digests of what a model computes, beside the shapes of its weights: a checkpoint is read by a model with the same."""

import hashlib
import json
from typing import Any

# Fields of configs that change what a model computes, but no shape. Of others a new version of transformers may have
# more, or other defaults, and the model is the same.
_COMPUTES = (
    *("model_type", "num_attention_heads", "num_key_value_heads", "head_dim", "num_heads", "hidden_act"),
    *(
        "rms_norm_eps",
        "layer_norm_eps",
        "rope_parameters",
        "use_bidirectional_attention",
        "sliding_window",
        "layer_types",
    ),
    *("image_size", "patch_size", "spatial_merge_size", "window_size", "fullatt_block_indexes"),
    *("deepstack_visual_indexes", "image_token_id", "vision_start_token_id", "vision_end_token_id"),
    *("tie_word_embeddings", "min_period", "max_period"),
)


def geometry_of(config: Any) -> str:
    """Return a digest of what a config of transformers decides about a model beside the shapes of its weights."""
    return digest_of(_deciding(config.to_dict()))


def digest_of(tree: Any) -> str:
    """Return a digest of numbers and texts in lists and mappings."""
    plain = json.dumps(tree, sort_keys=True, default=str)
    return hashlib.blake2b(plain.encode(), digest_size=8).hexdigest()


def _deciding(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `_COMPUTES` that are set, at their places."""
    parts = {name: each for name, each in tree.items() if isinstance(each, dict) and name.endswith("_config")}
    return {name: _deciding(each) for name, each in parts.items()} | {
        name: tree[name] for name in _COMPUTES if tree.get(name) is not None
    }
