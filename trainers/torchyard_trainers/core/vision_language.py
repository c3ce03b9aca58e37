"""Families of vision-language models of `transformers` that read images as tokens: Qwen2-VL and its successors."""

# `model_type` -> names of the classes of its config and of the model.
FAMILIES = {
    "qwen2_vl": ("Qwen2VLConfig", "Qwen2VLForConditionalGeneration"),
    "qwen2_5_vl": ("Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration"),
    "qwen3_vl": ("Qwen3VLConfig", "Qwen3VLForConditionalGeneration"),
}

# Names in published folders of Qwen2-VL and Qwen2.5-VL, which transformers renames, and writes, as well.
RENAMED = ((r"^visual\.", "model.visual."), (r"^model\.(?!language_model\.|visual\.)", "model.language_model."))
