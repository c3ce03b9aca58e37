"""Demonstrations of the expert on the tabletop, made on the device from their ids."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchyard_trainers.core.randomness import sample_keys, stream_key
from torchyard_trainers.vla import tabletop
from torchyard_trainers.vla.normalization import Scaling, measured, scaling
from torchyard_trainers.vla.observation import Demonstration, Observation
from torchyard_trainers.vla.params import Settings

# Held-out demonstrations and episodes are the same for every seed, so that policies of different runs can be compared.
EVALUATION_SEED = 1234
MEASURED = 4096  # demonstrations that statistics are made of


class Tabletop:
    """Demonstrations and episodes of a run."""

    def __init__(self, settings: Settings, image_size: int) -> None:
        """Render images of `image_size` pixels."""
        self._settings, self._size = settings, image_size

    @cached_property
    def statistics(self) -> dict[str, dict[str, list[float]]]:
        """Statistics of state and actions, equal in every process."""
        keys = sample_keys(stream_key(EVALUATION_SEED, "statistics", held_out=True), torch.arange(MEASURED))
        scene = tabletop.make_scenes(keys, self._settings.objects)
        gripper, actions, valid = tabletop.demonstrate(scene, self._settings.chunk)
        return {"observation.state": measured(gripper), "action": measured(actions[valid])}

    @cached_property
    def state_scaling(self) -> Scaling:
        """Normalises the state."""
        return self._scaling("observation.state")

    @cached_property
    def action_scaling(self) -> Scaling:
        """Normalises actions."""
        return self._scaling("action")

    def _scaling(self, name: str) -> Scaling:
        kind: Any = self._settings.normalization
        return scaling(self.statistics[name], kind)

    def demonstrations(self, ids: Tensor, *, held_out: bool = False) -> Demonstration:
        """Return the demonstrations of ids [m], on their device."""
        scene = self.scenes(ids, "demonstrations", held_out=held_out)
        gripper, actions, valid = tabletop.demonstrate(scene, self._settings.chunk)
        return Demonstration(self.observe(scene, gripper), self.action_scaling.normalize(actions), valid)

    def scenes(self, ids: Tensor, purpose: str, *, held_out: bool = False) -> tabletop.Scene:
        """Return the scenes of ids [m]."""
        return tabletop.make_scenes(self.keys(ids, purpose, held_out=held_out), self._settings.objects)

    def keys(self, ids: Tensor, purpose: str, *, held_out: bool = False) -> Tensor:
        """Return random keys of ids [m] for a purpose."""
        seed = EVALUATION_SEED if held_out else self._settings.seed
        return sample_keys(stream_key(seed, f"tabletop {purpose}", held_out=held_out), ids)

    def observe(self, scene: tabletop.Scene, gripper: Tensor) -> Observation:
        """Return what the policy sees with the grippers [m, 2] there."""
        images = tabletop.render(scene, gripper, self._size) * 2 - 1
        return Observation(images[:, None], self.state_scaling.normalize(gripper), tabletop.instructions(scene))
