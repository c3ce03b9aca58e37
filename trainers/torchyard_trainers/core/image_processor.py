"""How the image processor of a pretrained folder scales the colours of images, against how a workload does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.model_config import read_object

CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Mean and standard deviation of each colour; transformers calls these IMAGENET_STANDARD."""
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_SAME = 1e-4


def check_colours(folder: Path, field: str, colours: Sequence[Sequence[float]]) -> None:
    """Check that a model has seen images scaled as here; a folder without such a file leaves it to the family.

    Args:
        folder: of the model.
        field: of the job that names the folder.
        colours: mean and standard deviation of each colour here.

    Raises:
        ConfigError: the folder's image processor has others, or the file is not one.
    """
    for path in (folder / name for name in PROCESSOR_FILES):
        if not path.is_file():
            continue
        at = f"{field}: {path}"
        tree = read_object(path, at, "a config of an image processor")
        inner = tree.get("image_processor", tree)
        tree = inner if isinstance(inner, dict) else {}
        for name, ours in zip(("image_mean", "image_std"), colours, strict=True):
            theirs = tree.get(name)
            if theirs is not None and not _is_same(theirs, ours):
                raise ConfigError(
                    f"{at} has {name} {str(theirs)[:80]}, but images are scaled by {list(ours)} here, as published "
                    "models of this family were trained; name such a model"
                )


def _is_same(theirs: Any, ours: Sequence[float]) -> bool:
    numbers = theirs if isinstance(theirs, list) else [theirs] * len(ours)
    return len(numbers) == len(ours) and all(
        isinstance(number, int | float) and abs(number - own) < _SAME for number, own in zip(numbers, ours, strict=True)
    )
