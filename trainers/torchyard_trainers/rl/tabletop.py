"""A tabletop in pure torch: a gripper on a grid of cells, a can, and a bin; a camera above sees them.

The gripper is above the table or lowered onto it, open or closed. A can is held from where it was gripped until the
gripper opens; it can be moved only when it is lifted. Tasks: `reach` the can (be above it), `grasp` it, or
`pick_place` it into the bin. The reward of a step is `SHAPING` for each step that the expert then has less to make, and
1 for success, which ends the episode.
"""

from typing import Literal

import torch
from torch import Tensor

from torchyard_trainers.rl.drawing import box_distance, distance, empty_table, filled, outlined, paint
from torchyard_trainers.rl.environment import Outcome, State, select

Task = Literal["reach", "grasp", "pick_place"]
ACTIONS = ("forward", "backward", "left", "right", "up", "down", "close", "open")
FORWARD, BACKWARD, LEFT, RIGHT, UP, DOWN, CLOSE, OPEN = range(len(ACTIONS))
INSTRUCTIONS = {"reach": "reach the can", "grasp": "grasp the can", "pick_place": "put the can into the bin"}
SHAPING = 0.2
# Steps of an episode for each cell of a side: about twice what the expert needs across the whole table.
_LIMITS = {"reach": 3, "grasp": 4, "pick_place": 7}
_MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0), (0, 0), (0, 0), (0, 0), (0, 0))  # x, y of each action; forward is up
_CAN, _BIN = (0.9, 0.15, 0.1), (0.15, 0.3, 0.95)


class Tabletop:
    """See the module; a state has `gripper` [N, 3], `closed` [N], `held` [N], `can` [N, 2], `bin` [N, 2], `time` [N].

    Positions are x, y in cells, and 1 or 0 for up or down.
    """

    agents = 1
    actions = len(ACTIONS)
    draws = 3
    measure = "successRate"
    action_names = ACTIONS

    def __init__(self, task: Task, grid: int, size: int) -> None:
        """Make tables of grid x grid cells whose images have a side of `size` pixels."""
        self.task, self.grid, self.size = task, grid, size
        self.planes = (3, size, size)
        self.observed = 3 * size * size
        self.limit = _LIMITS[task] * grid
        self.instruction = INSTRUCTIONS[task]

    def reset(self, numbers: Tensor) -> State:
        """See `Environment`: neither gripper nor bin is where the can is."""
        cells = self.grid**2
        can = (numbers[:, 0] * cells).long()
        gripper, goal = ((can + 1 + (numbers[:, place] * (cells - 1)).long()) % cells for place in (1, 2))
        none = torch.zeros_like(can)
        return {
            "gripper": torch.cat([self._cell(gripper), none[:, None] + 1], 1),
            "closed": none.bool(),
            "held": none.bool(),
            "can": self._cell(can),
            "bin": self._cell(goal),
            "time": none,
        }

    def observe(self, state: State) -> Tensor:
        """See `Environment`: the image of the camera, channels first."""
        return self.render(state, self.size).flatten(1)[:, None]

    def step(self, state: State, actions: Tensor, numbers: Tensor) -> Outcome:
        """See `Environment`."""
        action = actions[:, 0]
        reached = self.advance(state, action)
        before, left = self.steps_left(state), self.steps_left(reached)
        success = left == 0
        truncated = (reached["time"] >= self.limit) & ~success
        reward = SHAPING * (before - left).float() + success.float()
        fresh, ended = self.reset(numbers), success | truncated
        return Outcome(select(ended, fresh, reached), reward[:, None], success[:, None], truncated[:, None], reached)

    def quality(self, episode_return: Tensor, terminated: Tensor) -> Tensor:
        """See `Environment`: only a success terminates an episode."""
        return terminated.to(episode_return.dtype)

    def advance(self, state: State, action: Tensor) -> State:
        """Return the states after actions [N], without a reset."""
        gripper, can, held = state["gripper"], state["can"], state["held"]
        moves = torch.tensor(_MOVES, device=action.device)[action]
        stuck = held & (gripper[:, 2] == 0)  # what is held must be lifted first
        place = torch.where(stuck[:, None], gripper[:, :2], (gripper[:, :2] + moves).clamp(0, self.grid - 1))
        height = torch.where(action == UP, 1, torch.where(action == DOWN, 0, gripper[:, 2]))
        grips = (action == CLOSE) & ~state["closed"] & (height == 0) & (place == can).all(1)
        held = (held | grips) & (action != OPEN)
        return {
            "gripper": torch.cat([place, height[:, None]], 1),
            "closed": (state["closed"] | (action == CLOSE)) & (action != OPEN),
            "held": held,
            "can": torch.where(held[:, None], place, can),
            "bin": state["bin"],
            "time": state["time"] + 1,
        }

    def steps_left(self, state: State) -> Tensor:
        """Return how many steps the expert needs to succeed, [N] int64; 0: the task is done."""
        gripper, held = state["gripper"], state["held"].long()
        to_can = (gripper[:, :2] - state["can"]).abs().sum(1)
        if self.task == "reach":
            return to_can
        to_grasp = (1 - held) * (to_can + gripper[:, 2] + state["closed"].long() + 1)
        if self.task == "grasp":
            return to_grasp
        way = (state["can"] - state["bin"]).abs().sum(1)
        lift = torch.where(state["held"], 1 - gripper[:, 2], 1)
        # Open above the bin; a can that is not held has to be grasped and lifted before.
        to_place = torch.where(way > 0, lift + way + 1, held)
        return to_place + torch.where(way > 0, to_grasp, 0)

    def expert(self, state: State) -> Tensor:
        """Return an action that brings success nearer, [N, 1] int64."""
        gripper, can, held = state["gripper"], state["can"], state["held"]
        goal = torch.where(held[:, None], state["bin"], can)
        x, y = (goal - gripper[:, :2]).unbind(1)
        lowered = gripper[:, 2] == 0
        there = torch.where(held, OPEN, torch.where(lowered, CLOSE, DOWN))
        along_y = torch.where(y < 0, FORWARD, torch.where(y > 0, BACKWARD, there))
        action = torch.where(x < 0, LEFT, torch.where(x > 0, RIGHT, along_y))
        action = torch.where(held & lowered & (goal != can).any(1), UP, action)
        if self.task != "reach":
            action = torch.where(state["closed"] & ~held, OPEN, action)
        return action[:, None]

    def render(self, state: State, size: int) -> Tensor:
        """Return what the camera above the table sees, [N, 3, size, size] in [0, 1].

        The can is a red disc, the bin a blue square. The gripper is a white ring, larger when it is up and thicker when
        it is closed.
        """
        gripper, device = state["gripper"], state["gripper"].device
        half = 1 / self.grid  # of a cell
        image = empty_table(len(gripper), size, device)
        if self.task == "pick_place":
            walls = outlined(box_distance(size, self._middle(state["bin"])), 0.8 * half, 0.15 * half)
            image = paint(image, walls, _colour(_BIN, device))
        image = paint(image, filled(distance(size, self._middle(state["can"])), 0.55 * half), _colour(_CAN, device))
        radius = torch.where(gripper[:, 2] > 0, 0.8, 0.45)[:, None, None, None] * half
        width = torch.where(state["closed"], 0.3, 0.12)[:, None, None, None] * half
        away = distance(size, self._middle(gripper[:, :2]))
        return paint(image, outlined(away, radius, width), 1.0)

    def _cell(self, number: Tensor) -> Tensor:
        return torch.stack([number % self.grid, number // self.grid], -1)

    def _middle(self, cell: Tensor) -> Tensor:
        """Return the middles of cells [N, 2] on the table, as points [N, 1, 2]."""
        return ((cell.float() + 0.5) * (2 / self.grid) - 1)[:, None]


def _colour(rgb: tuple[float, float, float], device: torch.device) -> Tensor:
    return torch.tensor(rgb, device=device)[:, None, None]
