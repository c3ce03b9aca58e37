"""Demonstrations of the expert on the tabletop, made on the device from their ids."""

from pathlib import Path
from typing import Any

from torch import Tensor

from torchyard_trainers.core.randomness import sample_keys, stream_key
from torchyard_trainers.core.vocabulary import Vocabulary
from torchyard_trainers.vla import tabletop
from torchyard_trainers.vla.data.instructions import Instructions
from torchyard_trainers.vla.data.normalization import Scaling, as_json, scaling
from torchyard_trainers.vla.observation import Demonstration, Observation
from torchyard_trainers.vla.settings import Settings

# Held-out demonstrations and episodes are the same for every seed, so that policies of different runs can be compared.
EVALUATION_SEED = 1234


def keys_of(settings: Settings, ids: Tensor, purpose: str, *, held_out: bool = False) -> Tensor:
    """Return random keys of samples or episodes [m] for a purpose."""
    seed = EVALUATION_SEED if held_out else settings.seed
    return sample_keys(stream_key(seed, f"tabletop {purpose}", held_out=held_out), ids)


class Tabletop:
    """Demonstrations and episodes of a run."""

    def __init__(self, settings: Settings, image_size: int, vocabulary: Vocabulary | None) -> None:
        """Render images of `image_size` pixels; instructions are encoded by a vocabulary, None: by their words."""
        self._settings, self._size = settings, image_size
        texts = [tabletop.sentence(colour) for colour in range(len(tabletop.COLOURS))]
        self.instructions = Instructions(texts, words=tabletop.WORDS, vocabulary=vocabulary)
        kind: Any = settings.normalization
        self.state_scaling: Scaling = scaling(tabletop.STATISTICS["observation.state"], kind)
        self.action_scaling: Scaling = scaling(tabletop.STATISTICS["action"], kind)

    def demonstrations(self, ids: Tensor, *, held_out: bool = False) -> Demonstration:
        """Return the demonstrations of ids [m], on their device."""
        scene = self.scenes(ids, "demonstrations", held_out=held_out)
        gripper, actions, valid = tabletop.demonstrate(scene, self._settings.chunk)
        return Demonstration(self.observe(scene, gripper), self.action_scaling.normalize(actions), valid)

    def scenes(self, ids: Tensor, purpose: str, *, held_out: bool = False) -> tabletop.Scene:
        """Return the scenes of ids [m]."""
        return tabletop.make_scenes(keys_of(self._settings, ids, purpose, held_out=held_out), self._settings.objects)

    def observe(self, scene: tabletop.Scene, gripper: Tensor) -> Observation:
        """Return what the policy sees with the grippers [m, 2] there."""
        images = tabletop.render(scene, gripper, self._size) * 2 - 1
        tokens, mask = self.instructions.of(scene.colour)
        return Observation(images[:, None], self.state_scaling.normalize(gripper), tokens, mask)

    def assets(self) -> dict[str, Path | str]:
        """Return files that an exported policy needs: statistics, and what encodes instructions."""
        kind: Any = self._settings.normalization
        return {"normalization.json": as_json(kind, tabletop.STATISTICS), **self.instructions.assets()}
