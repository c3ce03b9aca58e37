"""A tabletop in pure torch: coloured discs, a gripper that moves over them, an instruction, an expert, and a camera.

The table is the square [-1, 1]^2. An action [2] in [-1, 1] moves the gripper by `SPEED` times the action. A scene
follows from its key alone, and everything is computed on the device of the keys.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.core.randomness import split_keys, uniform
from torchyard_trainers.rl.drawing import distance, empty_table, filled, outlined, paint

COLOURS = ("red", "green", "blue", "yellow", "purple", "cyan")
_RGB = ((0.9, 0.1, 0.1), (0.1, 0.7, 0.1), (0.15, 0.25, 0.95), (0.95, 0.85, 0.1), (0.6, 0.15, 0.7), (0.1, 0.8, 0.85))
WORDS = ("reach", "the", "object", *COLOURS)  # of instructions
RADIUS = 0.2  # of an object; the gripper reaches it at this distance from its centre
SPEED = 0.25  # distance of one step along an axis
HOLD = 2  # steps that the expert rests at its goal
STEPS = 14  # of an episode: across the whole table in 8, and time to correct
ACTION_SIZE = STATE_SIZE = 2
# Of demonstrations, for normalisation: the bounds are those of the table, the deviations are measured.
STATISTICS = {
    "observation.state": {"min": [-1.0] * 2, "max": [1.0] * 2, "mean": [0.0] * 2, "std": [0.5] * 2},
    "action": {"min": [-1.0] * 2, "max": [1.0] * 2, "mean": [0.0] * 2, "std": [0.53] * 2},
}
# The places of objects, in rows of this many, and how far an object is from the middle of its place.
_ROW, _JITTER = 3, 0.12
_KEYS = _ROW * _ROW + 3 * len(COLOURS) + 4  # random numbers of a scene


class Scene(NamedTuple):
    """m tables: objects do not move.

    Attributes:
        objects: [m, n, 2], centres.
        colours: [m, n] int64, different within a scene.
        target: [m] int64, the object that the instruction names.
        start: [m, 2], where the gripper begins.
        moment: [m] in (0, 1), the part of the episode that a demonstration shows.
    """

    objects: Tensor
    colours: Tensor
    target: Tensor
    start: Tensor
    moment: Tensor

    @property
    def goal(self) -> Tensor:
        """The centre of the target, [m, 2]."""
        return self.objects.gather(1, self.target[:, None, None].expand(-1, 1, 2))[:, 0]

    @property
    def colour(self) -> Tensor:
        """The colour of the target, [m] int64."""
        return self.colours.gather(1, self.target[:, None])[:, 0]


def make_scenes(keys: Tensor, objects: int) -> Scene:
    """Return the scenes of keys [m] of `core.randomness`; each has the same number of objects, in the first colours."""
    places_of_all = _ROW * _ROW
    order, jitter, order_of_colours, rest = uniform(split_keys(keys, _KEYS)).split(
        [places_of_all, 2 * len(COLOURS), len(COLOURS), 4], dim=1
    )
    places = order.argsort(1)[:, :objects]
    middles = (torch.stack([places % _ROW, places // _ROW], -1) + 0.5) * (2 / _ROW) - 1
    centres = middles + (jitter.unflatten(1, (-1, 2))[:, :objects] * 2 - 1) * _JITTER
    colours = order_of_colours[:, :objects].argsort(1)
    return Scene(centres, colours, (rest[:, 0] * objects).long(), rest[:, 1:3] * 2 - 1, rest[:, 3])


def sentence(colour: int) -> str:
    """Return the instruction as text."""
    return f"reach the {COLOURS[colour]} object"


def step(gripper: Tensor, action: Tensor) -> Tensor:
    """Move grippers [m, 2] by actions [m, 2]; the table has an edge."""
    return (gripper + action.clamp(-1, 1) * SPEED).clamp(-1, 1)


def expert(gripper: Tensor, goal: Tensor) -> Tensor:
    """Return the expert's action [..., 2]: straight to the goal, at most one step along each axis."""
    return ((goal - gripper) / SPEED).clamp(-1, 1)


def expert_path(scene: Scene, moments: Sequence[int] | Tensor) -> Tensor:
    """Return where the expert is after numbers of steps [m, k]: [m, k, 2]. It rests along an axis when it is there."""
    reach = torch.as_tensor(moments, device=scene.start.device)[..., None] * SPEED
    way = (scene.goal - scene.start)[:, None]
    return scene.start[:, None] + way.clamp(-reach, reach)


def demonstrate(scene: Scene, horizon: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a moment of the expert's episode: the gripper [m, 2], the next actions [m, H, 2], and valid ones [m, H].

    An episode ends `HOLD` steps after the expert has arrived; actions after its end are not valid.
    """
    steps = ((scene.goal - scene.start).abs().amax(1) / SPEED).ceil().long() + HOLD
    now = (scene.moment * steps).long()
    ahead = now[:, None] + torch.arange(horizon + 1, device=now.device)
    path = expert_path(scene, ahead)
    return path[:, 0], path.diff(dim=1) / SPEED, ahead[:, :-1] < steps[:, None]


def render(scene: Scene, gripper: Tensor, size: int) -> Tensor:
    """Return what the camera above the table sees, [m, 3, size, size] in [0, 1]: discs, and the gripper as a ring."""
    rgb = torch.tensor(_RGB, device=gripper.device)[scene.colours]  # [m, n, 3]
    away = distance(size, scene.objects)
    image = empty_table(len(gripper), size, gripper.device)
    for number in range(scene.objects.shape[1]):
        image = paint(image, filled(away[:, number, None], RADIUS), rgb[:, number, :, None, None])
    return paint(image, outlined(distance(size, gripper[:, None]), 0.1, 0.05), 1.0)


class Outcome(NamedTuple):
    """The ends of m episodes, [m] bool each."""

    success: Tensor  # the gripper is at the target
    wrong_object: Tensor  # it is at another object


def judge(scene: Scene, gripper: Tensor) -> Outcome:
    """Return how episodes ended that left grippers [m, 2] there."""
    near = (scene.objects - gripper[:, None]).norm(dim=-1) <= RADIUS
    success = near.gather(1, scene.target[:, None])[:, 0]
    return Outcome(success, near.any(1) & ~success)
