"""Tiny models of families of transformers with random weights, as published folders."""

import torch

# The arguments of a config; the output layer, the layout of files or the names of layers differ from those of Llama.
_LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
_GEMMA2 = {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0}
_SIZES = {"n_embd": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.2}
FAMILIES = {
    "gpt2": {**_SIZES, "n_positions": 256, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
    "gemma2": {**_LLAMA, **_GEMMA2},
    "granite": {**_LLAMA, "logits_scaling": 4.0},
    "phi": {**_LLAMA, "resid_pdrop": 0},
    "mixtral": {**_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
    "phimoe": {**_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},  # whose router is a kind of linear layer
    "deepseek_v3": {  # a dense layer whose names are those of experts in the next one
        **_LLAMA,
        "moe_intermediate_size": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    "gpt_neo": {  # whose layers cut a mask of their own
        "hidden_size": 16,
        "num_layers": 2,
        "attention_types": [[["global", "local"], 1]],
        "num_heads": 2,
        "max_position_embeddings": 256,
        "window_size": 4,
        "initializer_range": 0.2,
    },
    "llama4_text": {
        **_LLAMA,
        "head_dim": 8,
        "num_local_experts": 4,
        "intermediate_size_mlp": 24,
        "attention_chunk_size": 16,
    },
    "mistral": {**_LLAMA, "head_dim": 8, "sliding_window": 8},
    "minimax": {**_LLAMA, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_neox": {**_LLAMA, "attention_dropout": 0, "hidden_dropout": 0},
    "hyperclovax": {**_LLAMA, "logits_scaling": 4.0},
    "opt": {
        "hidden_size": 16,
        "word_embed_proj_dim": 16,
        "ffn_dim": 24,
        "num_hidden_layers": 2,
        "dropout": 0,
        "num_attention_heads": 2,
        "max_position_embeddings": 256,
        "init_std": 0.2,
    },
    "falcon": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "initializer_range": 0.2,
        "multi_query": True,
        "alibi": True,
    },
    "qwen3_next": {  # layers with a state, besides those that attend
        **_LLAMA,
        "head_dim": 8,
        "num_hidden_layers": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "afmoe": {  # whose masks do not see positions
        **_LLAMA,
        "head_dim": 8,
        "sliding_window": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
    },
    "bloom": {"hidden_size": 16, "n_layer": 2, "n_head": 2},
}


def save_family(name, folder):
    """Write a model of a family with a tokenizer of characters as transformers saves it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from torchyard_trainers.lm.tokens import character_tokenizer

    tokenizer = character_tokenizer()
    special = {key: getattr(tokenizer, key) for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
    config = AutoConfig.for_model(name, vocab_size=len(tokenizer), **FAMILIES[name], **special)
    torch.manual_seed(1)
    lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for each in lm.parameters():
            each.add_(torch.randn_like(each) * 0.05)  # biases are zeros at first
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# As that of Qwen2-VL.
VISION_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VISION_TOKENS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}


def save_vision_family(name, folder):
    """Write a tiny model that reads images, such as `tiny-qwen2-vl` of `vlm`, with a tokenizer of bytes."""
    import transformers
    from tests.support.trainers.tokenizers import byte_level

    from torchyard_trainers.core.vision_language import FAMILIES as SEEING
    from torchyard_trainers.vlm.models import PRESETS

    special = ["<|im_start|>", "<|im_end|>", *VISION_TOKENS.values()]
    tokenizer = byte_level(special, VISION_TEMPLATE, eos="<|im_end|>")
    kind, arguments = PRESETS[name]
    numbers = {key: tokenizer.convert_tokens_to_ids(text) for key, text in VISION_TOKENS.items()}
    text = {**arguments["text_config"], "vocab_size": len(tokenizer)}
    config_class, model_class = (getattr(transformers, each) for each in SEEING[kind])
    torch.manual_seed(1)
    model = model_class(config_class(**{**arguments, "text_config": text, **numbers}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = {"shortest_edge": 16 * 16, "longest_edge": 64 * 64}
    transformers.Qwen2VLImageProcessorPil(patch_size=8, size=size).save_pretrained(folder)
    return folder
