"""What wraps a model leaves its name in the names of weights: finds which of them a file was saved from."""

from collections.abc import Callable, Collection

_MERGE = "merge the adapters and save the model: model.merge_and_unload().save_pretrained(FOLDER)"
_INNER = "save the model inside with save_pretrained, or rename the tensors"
# What is in names -> who puts it there, and what to do. Some stand before all names, some anywhere in them.
_BEFORE_ALL = {
    "base_model.model.": ("a model of peft", _MERGE),
    "module.": ("DistributedDataParallel or DeepSpeed", _INNER),
    "_forward_module.": ("Lightning Fabric", _INNER),
    "model.": ("a module that holds the model, such as a LightningModule", _INNER),
}
_ANYWHERE = {
    "_orig_mod.": ("torch.compile", _INNER),
    "_fsdp_wrapped_module.": ("FullyShardedDataParallel", _INNER),
    "_checkpoint_wrapped_module.": ("checkpoint_wrapper", _INNER),
    "base_layer.": ("a model of peft", _MERGE),
}


def wrapper_of(names: Collection[str], is_known: Callable[[str], bool]) -> str:
    """Return what the model was wrapped in when its weights were saved, and what to do; "" if nothing explains them.

    Args:
        names: of the tensors in the files.
        is_known: whether the model has a tensor of that name.
    """
    found: dict[str, tuple[str, str]] = {}
    for part, origin in _ANYWHERE.items():
        if any(part in name for name in names):
            names, found = [name.replace(part, "") for name in names], found | {part: origin}
    while not _most(names, is_known):
        part = next((each for each in _BEFORE_ALL if names and all(name.startswith(each) for name in names)), None)
        if part is None:
            return ""
        names, found = [name.removeprefix(part) for name in names], found | {part: _BEFORE_ALL[part]}
    if not found:
        return ""
    parts = ", and ".join(f"{part!r} of {origin}" for part, (origin, _) in found.items())
    fixes = [fix for _, fix in found.values()]
    return f"the names of its tensors have {parts}; {_MERGE if _MERGE in fixes else _INNER}"


def _most(names: Collection[str], is_known: Callable[[str], bool]) -> bool:
    """Return whether the model has most of the tensors; adapters and heads may be others."""
    return 2 * sum(map(is_known, names)) > len(names)
